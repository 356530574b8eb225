"""The numbers about the engine that the page shows, as a stream."""

import asyncio
import base64
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from penstock import __version__
from penstock.machine.memory import resident_bytes
from penstock.server.http.errors import llamacpp_envelope
from penstock.server.http.streams import EventStream, data
from penstock.server.observe.machine_series import machines_shown
from penstock.server.observe.memory import memory_by_tier
from penstock.server.observe.state_series import Totals
from penstock.server.service import Service, service_of
from penstock.storage.heat import ExpertMap

EVERY: Final = 1.0  # seconds
WARM: Final = 8.0  # heat below which even the hottest expert does not look hot
PRESENT: Final = 0x80  # the bit of a byte of the map; the others are the heat
TOKENS: Final = ("read", "cached", "generated", "prompt_seconds")
STORAGE: Final = (
    "hits",
    "misses",
    "evictions",
    "disk_bytes",
    "stall_seconds",
    "dense_stall_seconds",
    "read_seconds",
    "prefetch_useful",
    "prefetch_wasted",
    "read_errors",
)
TIERS: Final = (
    "device_hits",
    "device_misses",
    "on_host",
    "link_bytes",
    "disk_bytes",
    "host_stall_seconds",
    "link_stall_seconds",
)

router = APIRouter()


@router.get("/dashboard/events", include_in_schema=False)
async def events(request: Request) -> Response:
    """One snapshot of the engine a second, for as long as the client listens or the server runs."""
    service = service_of(request)
    metrics = getattr(request.app.state, "metrics", None)
    snapshots = _snapshots(service, None if metrics is None else metrics.totals)
    return await EventStream.open(snapshots, 0.0, lambda error: data(llamacpp_envelope(error)))


async def _snapshots(service: Service, totals: Totals | None) -> AsyncGenerator[str, None]:
    shown: dict[str, Any] | None = None
    while not service.scheduler.ended:
        found = snapshot(service, totals)
        latest = expert_map(service.engine.expert_map())
        if latest != shown:
            shown = found["map"] = latest
        yield data(found)
        await asyncio.sleep(EVERY)


def snapshot(service: Service, totals: Totals | None) -> dict[str, Any]:
    """Counters only grow, so that the page can tell rates from two snapshots; the rest is as it is now."""
    engine, scheduler, settings = service.engine, service.scheduler, service.settings
    stats, loading = engine.stats(), engine.loading
    return {
        "time": time.monotonic(),
        "state": service.state,
        "progress": None if loading is None else loading.share,
        "about": {
            "model": settings.name,
            "file": engine.checkpoint.path.name,
            "version": __version__,
            "layers": engine.config.layer_count,
            "experts": engine.config.experts,
            "experts_used": engine.config.experts_used,
            "context": engine.context,
            "mode": engine.plan.mode,
            "device": stats["device"]["name"] if "device" in stats else "CPU",
            "policy": stats.get("policy"),
            "budget": engine.plan.budget,
            "max_tokens": settings.max_tokens,
        },
        "tokens": None if totals is None else {name: getattr(totals, name) for name in TOKENS},
        "storage": {name: stats.get(name, 0) for name in STORAGE} if "hits" in stats else None,
        "tiers": {name: stats.get(name, 0) for name in TIERS} if "device_hits" in stats else None,
        "drafts": drafts(stats.get("draft")),
        "memory": memory_by_tier(service, stats),
        "gpu": _gpu_steps(stats.get("device")),
        "cluster": machines_shown(stats.get("cluster")),
        "resident": resident_bytes(),
        "queue": {
            "parallel": scheduler.parallel,
            "active": scheduler.active,
            "waiting": scheduler.waiting,
            "most_waiting": scheduler.most_waiting,
            "steps": scheduler.loop.steps,
            "rows": scheduler.loop.busy_rows,
            "engine_seconds": scheduler.loop.engine_seconds,
        },
        "slots": [
            {
                "prompt": each.prompt,
                "cached": each.cached,
                "read": each.read,
                "decoded": each.decoded,
                "remaining": each.remaining,
            }
            for each in scheduler.snapshot()
        ],
    }


def drafts(stats: dict[str, Any] | None) -> dict[str, Any] | None:
    """Tokens that were guessed, those that were right, and how many times as fast that made answers."""
    if stats is None:
        return None
    drafted, accepted = (sum(map(sum, stats[name].values())) for name in ("drafted", "accepted"))
    return {"drafted": drafted, "accepted": accepted, "gain": round(stats["gain"], 3)}


def _gpu_steps(device: dict[str, Any] | None) -> dict[str, int] | None:
    """By how they were launched: as a graph that was recorded, or kernel by kernel; None on the CPU."""
    if device is None:
        return None
    return {"repeated": device["steps_repeated"], "launched": device["steps_launched"]}


def expert_map(found: ExpertMap | None) -> dict[str, Any] | None:
    """A byte for each expert, block after block: whether it is in memory, and its heat on a logarithmic scale from 0
    to 127, which stands for `hottest`."""
    if found is None:
        return None
    hottest = max(WARM, float(found.heat.max(initial=0.0)))
    heat = np.rint(127 * np.log1p(found.heat) / np.log1p(hottest)).astype(np.uint8)
    cells = heat | np.where(found.present, np.uint8(PRESENT), np.uint8(0))
    return {
        "blocks": found.blocks,
        "experts": found.heat.shape[1],
        "hottest": round(hottest, 1),
        "cells": base64.b64encode(cells.tobytes()).decode(),
        # A byte for each expert: 0 disk, 1 memory, 2 a GPU; None where there is no GPU that holds some of them.
        "tiers": None if found.tiers is None else base64.b64encode(found.tiers.tobytes()).decode(),
    }

"""What each tier of memory holds and may hold, for the metrics and for the page."""

from typing import Any

from penstock.server.service import Service


def memory_by_tier(service: Service, stats: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Bytes of every tier: what it holds, what it may hold, and for weights how many there are."""
    plan, cache, loading = service.engine.plan, service.scheduler.prefix_cache, service.engine.loading
    here = 0.0 if service.engine.parked else 1.0
    share = here if loading is None else loading.share
    mapped = plan.experts_held if plan.mode == "mmap" and here else 0
    in_use = sum(
        service.engine.state_bytes(each.read + each.decoded) for each in service.scheduler.snapshot()
    )
    tiers = {
        "program": {"used": plan.base, "limit": plan.base},
        "work": {"used": round(plan.work * here), "limit": plan.work},
        "dense": {
            "used": round((plan.dense_held + plan.dense_buffers) * share),
            "limit": plan.dense_held + plan.dense_buffers,
            "total": plan.dense,
        },
        "experts": {
            "used": stats.get(
                "cached_bytes", round(plan.experts_held * share) if "device" in stats else mapped
            ),
            "limit": stats.get("capacity_bytes", plan.experts_held),
            "total": plan.experts_total,
        },
        "requests": {"used": min(service.work.memory.used, plan.requests), "limit": plan.requests},
        "sessions": {"used": cache.bytes + in_use, "limit": cache.budget, "kept": len(cache)},
    }
    device = stats.get("device")
    if plan.tiers is not None:
        slot = plan.experts_held // max(1, plan.tiers.slots)
        tiers["experts"] |= {"used": stats.get("slots_used", 0) * slot, "limit": plan.experts_held}
        held = plan.tiers.held
        tiers["ram"] = {"used": stats.get("cached_bytes", round(held * here)), "limit": held}
    if device is not None:
        tiers["gpu"] = {"used": device["used_bytes"] or 0, "limit": device["memory_bytes"]}
    if cache.disk is not None:
        store = cache.disk.store
        tiers["disk"] = {"used": store.bytes, "limit": store.space, "kept": len(store)}
    return tiers

"""A model that a GPU's memory does not hold: experts on the card, in RAM and on disk, and what binds each case.

    python -m benchmarks.tiers --synth /mnt/ram/q2.gguf [--layers 43] [--cases 24,2k,8k,12,alone]
    python -m benchmarks.tiers --synth /mnt/ram/skew.gguf --skew 1 --layers 12 --cases 24
    python -m benchmarks.tiers --synth /data/q2.gguf --layers 12 --cases disk

24, 12   decoding with `--vram 24GiB` and `12GiB`, the rest in RAM
alone    the same with 12GiB and every expert copied to the card: what the processors' share is worth
2k, 8k   prompts of 2,048 and 8,192 tokens with 24GiB
disk     decoding with `--vram 16GiB --memory 32GiB`, once memory is full
parts    what one expert takes over the link and on the processors
plan     what `plan` expects of 24 and 12 before anything is loaded, and what that is based on

The file is best on a RAM disk with huge pages, which the link and the processors read faster than those of 4 KiB that
/dev/shm usually has:

    mount -t tmpfs -o huge=always,size=100g tmpfs /mnt/ram

One engine runs them: smaller budgets are slots that it gives up.
With fewer layers than the published model has, budgets shrink so that tiers hold the same share of the experts, and
speeds are those of all layers: the time of a token grows with them.  Weights are random: what is chosen is uniform,
or follows Zipf's law with `--skew`.  Every line is JSON.  `planned` is what `plan` would expect after the case.
Twelve layers are 26 GB.

The disk's case is to be run in a memory group of that size, whose peak is printed:

    systemd-run --user --scope -p MemoryMax=34G python -m benchmarks.tiers … --cases disk
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tier_parts import measure_parts
from penstock import Engine
from penstock.backend import open_backend
from penstock.backend.device import DeviceBackend
from penstock.bench.tier_speed import device_share, expect_in_tiers, expect_with
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.engine.sampling import Sampling
from penstock.errors import BudgetError
from penstock.machine.gpu import read_gpu_memory
from penstock.machine.groups import find_groups
from penstock.machine.kernel_files import text
from penstock.machine.memory import resident_bytes
from penstock.storage.plan import Plan
from penstock.storage.tiers.pace import Pacer
from penstock.storage.tiers.plan import memory_share
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.imagined import imagine
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import plan_synth, stored_type, write_synth
from penstock.weights.widths import WIDTHS

GIB = 1 << 30
CONTEXT = 16384
SAMPLING = Sampling(temperature=1.0, seed=1, ignore_eos=True)
WARM, TOKENS = 12, 40
MOST_WARM = 200  # tokens, until a cache of experts that come from disk is full
FULL = 0.9
COUNTED = (
    "device_hits",
    "copied",
    "on_host",
    "disk_reads",
    "ahead_right",
    "ahead_wrong",
)  # experts of a token
KNOWN = ("24", "12", "alone", "2k", "8k", "disk", "parts", "plan")


def say(case: str, **numbers: Any) -> None:
    print(json.dumps({"case": case, **numbers}), flush=True)


@dataclass(frozen=True)
class Scaled:
    """A file with fewer layers, and the whole model that it stands for."""

    path: Path
    checkpoint: Checkpoint
    whole: Checkpoint
    backend: DeviceBackend

    @property
    def layers(self) -> float:
        """How many times as many the whole model has."""
        return self.whole.config.layer_count / self.checkpoint.config.layer_count

    def vram(self, nbytes: int) -> int:
        """The budget that gives this file the share of experts on the card that the whole model has in `nbytes`."""
        if self.layers == 1:
            return nbytes
        wanted, _ = self._share(self.whole, nbytes)
        low, high = 2 * GIB, nbytes
        while high - low > 64 << 20:
            middle = (low + high) // 2
            share, fits = self._share(self.checkpoint, middle)
            low, high = (middle, high) if not fits or share < wanted else (low, middle)
        return high

    def plan(self, vram: int, memory: Any = None) -> Plan:
        """Of this file, with the whole model's budget of the card."""
        chosen = EngineOptions(
            device="cuda", vram=self.vram(vram), memory=memory, draft="off", learn="off", context=CONTEXT
        )
        return make_engine_plan(self.checkpoint, chosen, self.backend, CONTEXT)[0]

    def _share(self, checkpoint: Checkpoint, vram: int) -> tuple[float, bool]:
        chosen = EngineOptions(device="cuda", vram=vram, memory=None, draft="off", context=CONTEXT)
        try:
            plan, _ = make_engine_plan(checkpoint, chosen, self.backend, CONTEXT)
        except BudgetError:
            return 0.0, False
        return plan.experts_held / plan.experts_total, True

    def memory(self, nbytes: int) -> int:
        """The same for RAM."""
        fixed = 2 * GIB
        return fixed + int((nbytes - fixed) / self.layers)


def open_case(scaled: Scaled, vram: int, **options: Any) -> Engine:
    begin, budget = time.perf_counter(), scaled.vram(vram)
    given = {"device": "cuda", "context": CONTEXT, "memory": None, "draft": "off", "learn": "off", **options}
    engine = Engine(scaled.path, vram=budget, **given)
    plan: Plan = engine.plan
    assert plan.tiers is not None, "the model fits: nothing comes and goes"
    say(
        "opened", vram=vram / GIB, budget=round(budget / GIB, 2), slots=plan.tiers.slots, chunk=plan.chunk,
        share=round(plan.experts_held / plan.experts_total, 3), whole=plan.tiers.whole,
        long_slots=sum(kind.long_slots for kind in plan.tiers.kinds), seconds=round(time.perf_counter() - begin, 1),
        **{name: value for name, value in engine.stats().items() if "second" in name or "pin" in name},
    )  # fmt: skip
    return engine


def give_up(engine: Engine, scaled: Scaled, vram: int) -> None:
    """The card holds what it would hold with a smaller budget: nothing is opened again."""
    tiers = engine.storage.tiers
    assert tiers is not None
    plan = scaled.plan(vram)
    assert plan.tiers is not None
    slots = sum(kind.slots * kind.slot_bytes for kind in plan.tiers.kinds)
    assert engine.plan.tiers is not None
    tiers.experts.withhold(sum(kind.slots * kind.slot_bytes for kind in engine.plan.tiers.kinds) - slots)
    say("given up", vram=vram / GIB, slots=tiers.stats()["slots"])


def peaks(engine: Engine, before: int) -> dict[str, float | None]:
    counted, group = read_gpu_memory(0), group_peak()
    used = 0 if counted is None else counted.total - counted.free - before
    assert engine.plan.budget is not None
    return {
        "vram_used": round(used / GIB, 2),
        "vram_budget": round(engine.plan.budget / GIB, 2),
        "resident": round((resident_bytes() or 0) / GIB, 2),
        "group_peak": None if group is None else round(group / GIB, 2),
    }


def group_peak() -> int | None:
    """The most that the memory group of this process has held, a RAM disk's files included."""
    for folder in find_groups("memory").folders[:1]:
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (found := text(folder / name)) is not None:
                return int(found)
    return None


def decode(engine: Engine, scaled: Scaled, case: str, vram: int, before: int) -> float:
    """Tokens per second of the whole model"""
    tiers = engine.storage.tiers
    assert tiers is not None
    session, times, counted = engine.session(), list[float](), None
    prompt = [int(i) for i in np.random.default_rng(1).integers(2, engine.config.vocab_size, 16)]
    begin, warm = time.perf_counter(), 0
    for _ in engine.generate(prompt, MOST_WARM + TOKENS, SAMPLING, session):
        if counted is not None:
            times.append(time.perf_counter() - begin)
        elif (warm := warm + 1) >= WARM and (is_full(stats := engine.stats()) or warm == MOST_WARM):
            counted = stats
            tiers.experts.pacer = Pacer(tiers.experts.counters, engine.config.layer_count)
        if len(times) == TOKENS:
            break
        begin = time.perf_counter()
    assert counted is not None
    after, mean = engine.stats(), statistics.mean(times)
    each = {
        name: (after[name] - counted[name]) / len(times)
        for name in after
        if isinstance(after[name], int | float) and name in counted
    }
    link = each["copied"] * after["link_seconds_per_expert"]
    disk = each["disk_reads"] * after["disk_seconds_per_expert"]
    parts = {"link": link, "processors": each["host_seconds"], "disk": disk}
    layer = 1e6 / engine.config.layer_count
    host = {"waits": each["idle_seconds"], "keeps books": mean - each["idle_seconds"]}  # beside what computes
    card = {"waits for host": each["host_stall_seconds"], "then for link": each["link_stall_seconds"]}
    card["computes"] = mean - sum(card.values())
    rest = mean - max(parts.values())
    binds = (
        max(parts, key=lambda name: parts[name])
        if max(parts.values()) > mean / 2
        else "the card and the host's turns"
    )
    speed = 1 / (mean * scaled.layers)
    plan, pacer = scaled.plan(vram, engine.options.memory), tiers.experts.pacer
    share = device_share(scaled.checkpoint, plan)
    routing, pace = pacer.routing(share, memory_share(plan, share)), pacer.pace
    assert routing is not None
    assert pace is not None
    division = tiers.experts.division
    planned = expect_with(scaled.checkpoint, plan, division.times, pace, routing, division.exact)
    say(
        case, tokens_per_second=round(speed, 2), planned=round(planned.tokens_per_second / scaled.layers, 2),
        routing=[round(each, 3) for each in routing], warm=warm, binds=binds, ms=round(mean * 1e3, 2),
        median_ms=round(statistics.median(times) * 1e3, 2), layers=engine.config.layer_count,
        us_a_layer=round(mean / engine.config.layer_count * 1e6), besides_ms=round(rest * 1e3, 2),
        of_bound=round(max(parts.values()) / mean, 2),
        parts_ms={name: round(value * 1e3, 2) for name, value in parts.items()},
        host_us_a_layer={name: round(value * layer) for name, value in host.items()},
        card_us_a_layer={name: round(value * layer) for name, value in card.items()},
        hit_rate=round(each["device_hits"] / (each["device_hits"] + each["device_misses"]), 3),
        experts={name: round(each[name], 1) for name in COUNTED},
        link_megabytes=round(each["link_bytes"] / 1e6, 1), **peaks(engine, before),
    )  # fmt: skip
    return speed


def is_full(stats: dict[str, Any]) -> bool:
    """Whether memory has what it will have: from now on something goes for what comes."""
    return bool(stats.get("cached_bytes", 1) >= FULL * stats.get("capacity_bytes", 0))


def machine() -> dict[str, str]:
    """What the system says of memory and processors."""
    files = {
        "huge_pages": "/sys/kernel/mm/transparent_hugepage/enabled",
        "huge_shared": "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "nodes": "/sys/devices/system/node/online",
        "processors": "/sys/devices/system/cpu/online",
        "siblings": "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    }
    return {name: Path(path).read_text().strip() for name, path in files.items() if Path(path).exists()}


def prefill(engine: Engine, scaled: Scaled, length: int, before: int) -> float:
    ids = np.random.default_rng(length).integers(2, engine.config.vocab_size, length).tolist()
    engine.session().feed(ids[:64])  # kernels compiled
    seconds = []
    for _ in range(2):
        session, counted, begin = engine.session(), engine.stats(), time.perf_counter()
        session.feed(ids)
        seconds.append(time.perf_counter() - begin)
    after = engine.stats()
    link = (after["passed"] - counted["passed"]) * after["link_seconds_per_expert"]
    speed = length / (min(seconds) * scaled.layers)
    say(
        f"prefill {length}", tokens_per_second=round(speed),
        seconds=[round(each, 3) for each in seconds], link_seconds=round(link, 3),
        binds="link" if link > 0.6 * min(seconds) else "the card", chunk=engine.plan.chunk,
        link_gigabytes=round((after["link_bytes"] - counted["link_bytes"]) / 1e9, 2), **peaks(engine, before),
    )  # fmt: skip
    return speed


def foretell(scaled: Scaled) -> None:
    for vram in (24, 12):
        plan = scaled.plan(vram * GIB)
        found = expect_in_tiers(scaled.checkpoint, plan, scaled.backend, EngineOptions(learn="off"))
        say(
            f"plan {vram}", tokens_per_second=round(found.tokens_per_second / scaled.layers, 2), binds=found.binds,
            hit_rate=round(found.device, 3), basis=found.basis, measured=found.measured,
        )  # fmt: skip


def run_case(engine: Engine, scaled: Scaled, case: str, before: int) -> float:
    assert engine.storage.tiers is not None
    experts = engine.storage.tiers.experts
    experts.division.exact = case == "alone"
    vram = (12 if case in ("12", "alone") else 24) * GIB
    if case in ("12", "alone"):
        give_up(engine, scaled, vram)
    else:
        experts.withhold(0)
    if case == "parts":
        say("an expert, microseconds: processors alone, beside copies", **measure_parts(engine))
        return 0.0
    if case in ("2k", "8k"):
        return prefill(engine, scaled, 2048 if case == "2k" else 8192, before)
    return decode(engine, scaled, f"decode {case}", vram, before)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers")
    add = parser.add_argument
    add("--synth", type=Path, required=True, help="write a synthetic model there first, unless it is there")
    add("--layers", type=int)
    add("--mix", default="q2")
    add("--skew", type=float, default=0.0)
    add("--cases", default="24,2k,8k,12,alone")
    add("--threads", type=int)
    chosen = parser.parse_args()
    if not chosen.synth.exists():
        begin = time.perf_counter()
        plan = plan_synth(width="flash", layers=chosen.layers, mix=chosen.mix, skew=chosen.skew)
        write_synth(plan, chosen.synth)
        say(
            "written",
            gigabytes=round(chosen.synth.stat().st_size / 1e9, 1),
            seconds=round(time.perf_counter() - begin, 1),
        )
    counted = read_gpu_memory(0)
    before = 0 if counted is None else counted.total - counted.free
    backend = open_backend("cuda", 1)
    assert isinstance(backend, DeviceBackend)
    speeds = backend.speeds()
    say(
        "card",
        name=backend.description,
        machine=machine(),
        memory=round(speeds.memory / 1e9),
        link=round(speeds.from_host / 1e9, 1),
    )
    backend.release()
    whole = imagine(WIDTHS["flash"].whole(), lambda each: stored_type(each, chosen.mix))
    scaled = Scaled(chosen.synth, open_checkpoint(chosen.synth), whole, backend)
    options = {} if chosen.threads is None else {"threads": chosen.threads}
    speed: dict[str, float] = {}
    cases = chosen.cases.split(",")
    if unknown := set(cases) - {*KNOWN}:
        parser.error(f"--cases: {', '.join(unknown)}, expected some of {', '.join(KNOWN)}")
    if "plan" in cases:
        foretell(scaled)
        cases.remove("plan")
    if "disk" in cases:
        memory = scaled.memory(32 * GIB)
        with open_case(scaled, 16 * GIB, memory=memory, **options) as engine:
            decode(engine, scaled, "disk", 16 * GIB, before)
        cases.remove("disk")
    backend.release()
    if cases:
        with open_case(scaled, (24 if {"24", "2k", "8k"} & {*cases} else 12) * GIB, **options) as engine:
            for case in cases:
                speed[case] = run_case(engine, scaled, case, before)
    if {"12", "alone"} <= speed.keys():
        say("processors' share", times_as_fast=round(speed["12"] / speed["alone"], 2))


if __name__ == "__main__":
    main()

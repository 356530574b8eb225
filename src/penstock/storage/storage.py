"""Where a model's weights are kept: the plan for a budget of memory, carried out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend, HostBackend
from penstock.errors import OptionError
from penstock.machine.memory import read_memory
from penstock.storage.cache import make_cache
from penstock.storage.counters import BlockCounters, Counters
from penstock.storage.dense import DenseWeights, LoadedDense
from penstock.storage.device import DeviceDense, DeviceExperts
from penstock.storage.learning import Learning
from penstock.storage.pack import find_source
from penstock.storage.page_cache import Bringing
from penstock.storage.plan import Plan
from penstock.storage.policy_choice import DEFAULT, choose_policy, note_trace
from penstock.storage.prefetch import Prefetch
from penstock.storage.reader import Reader
from penstock.storage.slots import Slots
from penstock.storage.source import ExpertSource
from penstock.storage.store import ExpertStore, MappedExperts
from penstock.storage.streamed import StreamedExperts
from penstock.storage.tiers.opening import Tiers, open_tiers
from penstock.storage.trace import TraceHeader, TraceWriter
from penstock.storage.watch import Watch
from penstock.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Storage:
    """The plan and those who carry it out."""

    plan: Plan
    dense: DenseWeights
    experts: ExpertStore
    reader: Reader | None = None
    counters: Counters | None = None
    recorder: "Recorder | None" = None
    watch: Watch | None = None
    bringing: Bringing | None = None
    learning: "Learning | None" = None
    tiers: Tiers | None = None
    step_began: dict[str, Any] = field(default_factory=dict)

    def totals(self) -> dict[str, Any]:
        """Counters that only grow."""
        if self.tiers is not None:
            return self.tiers.totals()
        if self.counters is None or self.reader is None:
            return {}
        read = self.reader.stats()
        return (
            self.counters.totals()
            | self.dense.stats()
            | {
                "disk_bytes": read["bytes"],
                "read_seconds": read["active_ns"] / 1e9,
                "reads": read["reads"],
                "read_latency_seconds": read["busy_ns"] / 1e9,
                "read_retries": read["retries"],
            }
        )

    def waits(self) -> tuple[int, float]:
        """So far: bytes of experts that were missing, and seconds that steps waited for them."""
        if self.counters is None:
            return 0, 0.0
        blocks = self.counters.blocks
        return sum(each.bytes_read for each in blocks), sum(each.stall_seconds for each in blocks)

    def preload(self) -> None:
        """Called once the dense weights are there: the experts that were used most are next."""
        if self.tiers is not None:
            self.tiers.begin(self.learning.known if self.learning is not None else None)
        if self.learning is not None and isinstance(self.experts, StreamedExperts) and self.recorder is None:
            usage = self.learning.known
            if usage is not None and usage.tells:
                self.experts.preload(usage.favourites())

    def begin_step(self, rows: int) -> None:
        """Called before every step of so many rows."""
        if self.tiers is not None:
            self.tiers.begin_step(rows)
        self.step_began.clear()
        self.step_began.update(self.totals())
        if self.recorder is not None:
            self.recorder.step += 1
        if self.watch is not None:
            self.watch.adjust()

    def shrink(self) -> bool:
        """A device is short of memory: some of its experts go.  False: none can."""
        return self.tiers is not None and self.tiers.experts.shrink()

    def lend(self, nbytes: int) -> None:
        """Sessions need so many bytes beyond what the plan has for them: experts give way."""
        if self.tiers is not None:
            self.tiers.experts.lend(nbytes - max(0, (self.plan.budget or 0) - self.plan.total))
        if isinstance(self.experts, StreamedExperts) and self.plan.mode == "direct":
            self.experts.lend(nbytes - max(0, (self.plan.budget or 0) - self.plan.total))

    def stats(self) -> dict[str, Any]:
        """Counters since the beginning, those of the latest step, and by block."""
        source = self.experts.source if isinstance(self.experts, StreamedExperts) else self.dense.checkpoint
        found: dict[str, Any] = {"mode": self.plan.mode, "experts_from": str(source.path)}
        totals = self.totals()
        if self.tiers is not None:
            latest = {name: value - self.step_began.get(name, 0) for name, value in totals.items()}
            return found | totals | self.tiers.stats() | {"step": latest}
        if not totals or self.counters is None:
            return found
        latest = {name: value - self.step_began.get(name, 0) for name, value in totals.items()}
        found |= totals | _rates(totals)
        found["step"] = latest | _rates(latest)
        if isinstance(self.experts, StreamedExperts):
            cache = self.experts.cache
            found |= {"cached": len(cache), "cached_bytes": cache.used, "capacity_bytes": cache.capacity}
            found["policy"] = cache.policy.name
        found["blocks"] = self.counters.by_block()
        return found

    def close(self) -> None:
        if self.tiers is not None:
            self.tiers.experts.settle()
        if self.learning is not None:
            self.learning.finish()
        if self.bringing is not None:
            self.bringing.stop()
        if self.recorder is not None:
            self.recorder.close()
        if self.reader is not None:
            self.reader.close()
        if self.tiers is not None:
            self.tiers.close()


def _rates(totals: dict[str, Any]) -> dict[str, float]:
    asked = totals["hits"] + totals["misses"]
    seconds, reads = totals["read_seconds"], totals["reads"]
    stalled = totals["stall_seconds"] + totals.get("dense_stall_seconds", 0.0)
    return {
        "hit_rate": totals["hits"] / asked if asked else 0.0,
        "read_bandwidth": totals["disk_bytes"] / seconds if seconds else 0.0,
        "read_latency": totals["read_latency_seconds"] / reads if reads else 0.0,
        "overlap": 1 - min(1.0, stalled / seconds) if seconds else 1.0,  # of reading, what nobody waited for
    }


class Recorder:
    """Writes what layers ask for to a trace."""

    def __init__(self, path: Path, fingerprint: str, source: ExpertSource):
        sizes = dict(zip(source.blocks, source.slot_bytes, strict=True))
        self._model, self._path = fingerprint, path
        self._writer = TraceWriter(path, TraceHeader(fingerprint, sizes, source.experts))
        self.step = 0

    def record(self, block: int, rows: int, experts: Sequence[int]) -> None:
        self._writer.write(self.step, block, rows, experts)

    def close(self) -> None:
        self._writer.close()
        note_trace(self._model, self._path)


def open_storage(
    checkpoint: Checkpoint,
    backend: Backend,
    plan: Plan,
    *,
    policy: str,
    pack: Path | str | None,
    trace: Path | None,
    governed: bool,
    learn: bool,
    exact: bool,
    fingerprint: Callable[[], str],
) -> Storage:
    """Makes the stores of the plan.  Weights are read when the model asks `dense` to load.

    governed: whether the experts' share follows what the machine can spare
    learn: whether to begin with what was used most so far, and to remember what is used now
    exact: whether all experts are computed by the device, where one has only some of them
    """
    if isinstance(backend, DeviceBackend):
        if plan.tiers is not None:
            return _open_tiers(checkpoint, backend, plan, policy, pack, trace, exact, learn, fingerprint)
        if trace is not None:
            raise OptionError(
                "trace: a GPU keeps to itself which experts are asked for; device cpu records them"
            )
        reader, stacks = Reader(), DeviceExperts(checkpoint, backend)
        return Storage(plan, DeviceDense(checkpoint, backend, reader, stacks), stacks, reader)
    assert isinstance(backend, HostBackend)
    source = find_source(checkpoint, pack)
    if plan.mode == "mmap" and trace is None:
        dense, experts = DenseWeights(checkpoint, backend), MappedExperts(checkpoint, backend)
        extents = checkpoint.extents()
        fits = sum(end - start for _, start, end in extents) <= read_memory().room
        learning = Learning(fingerprint(), experts.heat) if learn else None
        return Storage(plan, dense, experts, bringing=Bringing(extents) if fits else None, learning=learning)
    reader, counters = Reader(), Counters([BlockCounters() for _ in source.blocks])
    slots = Slots(plan.experts_held + plan.ahead)
    if policy == "auto":
        policy = choose_policy(fingerprint(), plan.experts_held) if plan.mode == "direct" else "lru"
    recorder = None if trace is None else Recorder(trace, fingerprint(), source)
    streamed = StreamedExperts(
        source,
        backend,
        reader,
        make_cache(policy, plan.experts_held, source.slot_bytes, source.experts),
        slots,
        Prefetch(source, reader, slots, plan.ahead, counters),
        counters,
        recorder=recorder,
    )
    loaded = LoadedDense(checkpoint, backend, reader, plan.streamed, plan.slice_head)
    watch = None
    if governed and plan.mode == "direct":
        watch = Watch(
            streamed,
            lowest=2 * source.checkpoint.config.experts_used * plan.expert_bytes,
            highest=source.total_bytes,
        )
    learning = Learning(fingerprint(), streamed.heat, counters) if learn else None
    return Storage(plan, loaded, streamed, reader, counters, recorder, watch, learning=learning)


def _open_tiers(
    checkpoint: Checkpoint,
    backend: DeviceBackend,
    plan: Plan,
    policy: str,
    pack: Path | str | None,
    trace: Path | None,
    exact: bool,
    learn: bool,
    fingerprint: Callable[[], str],
) -> Storage:
    reader, source = Reader(), find_source(checkpoint, pack)
    recorder = None if trace is None else Recorder(trace, fingerprint(), source)
    chosen = DEFAULT if policy == "auto" else policy
    tiers = open_tiers(source, backend, plan, reader, policy=chosen, exact=exact, recorder=recorder)
    learning = Learning(fingerprint(), tiers.experts.heat) if learn else None
    dense = DeviceDense(checkpoint, backend, reader, None)
    return Storage(plan, dense, tiers.experts, reader, recorder=recorder, learning=learning, tiers=tiers)

"""Where a model's weights are kept: the plan for a budget of memory, carried out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.engine.options import EngineOptions
from penstock.engine.policy_choice import choose_policy, note_trace
from penstock.engine.watch import Watch
from penstock.experts.ahead import Ahead
from penstock.experts.cache import make_cache
from penstock.experts.counters import BlockCounters, Counters
from penstock.experts.dense import DenseWeights, LoadedDense
from penstock.experts.pack import find_source
from penstock.experts.planner import BLOCK, Needs, Plan, Sizes, make_plan
from penstock.experts.reader import Reader
from penstock.experts.slots import Slots
from penstock.experts.source import ExpertSource
from penstock.experts.store import ExpertStore, MappedExperts
from penstock.experts.streamed import StreamedExperts
from penstock.experts.trace import TraceHeader, TraceWriter
from penstock.kernels.ops import Ops
from penstock.kv.state import KV_DTYPES, SequenceMemory, StateLayout
from penstock.machine.memory import Memory, read_memory
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig

PROGRAM: Final = 300 << 20  # interpreter, torch and the library, as measured after the first step
PER_TOKEN: Final = (
    720  # bytes for each entry of the vocabulary: the tokenizer, and what holds answers to a form
)
SHORTEST: Final = 4096  # tokens of context that are always planned for
STATE_SHARE: Final = 8  # without a given context, at most an eighth of the budget for its state


@dataclass(frozen=True)
class Storage:
    """The plan and those who carry it out."""

    plan: Plan
    context: int
    dense: DenseWeights
    experts: ExpertStore
    reader: Reader | None = None
    counters: Counters | None = None
    recorder: "Recorder | None" = None
    watch: Watch | None = None
    step_began: dict[str, Any] = field(default_factory=dict)

    def totals(self) -> dict[str, Any]:
        """Counters that only grow."""
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

    def begin_step(self) -> None:
        """Called before every step."""
        self.step_began.clear()
        self.step_began.update(self.totals())
        if self.recorder is not None:
            self.recorder.step += 1
        if self.watch is not None:
            self.watch.look()

    def stats(self) -> dict[str, Any]:
        """Counters since the beginning, those of the latest step, and by block."""
        source = self.experts.source if isinstance(self.experts, StreamedExperts) else self.dense.checkpoint
        found: dict[str, Any] = {"mode": self.plan.mode, "experts_from": str(source.path)}
        totals = self.totals()
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
        if self.recorder is not None:
            self.recorder.close()
        if self.reader is not None:
            self.reader.close()


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

    def __init__(self, options: EngineOptions, fingerprint: Callable[[], str], source: ExpertSource):
        assert options.trace is not None
        sizes = dict(zip(source.blocks, source.slot_bytes, strict=True))
        self._model, self._path = fingerprint(), options.trace
        self._writer = TraceWriter(options.trace, TraceHeader(self._model, sizes, source.experts))
        self.step = 0

    def record(self, block: int, rows: int, experts: Sequence[int]) -> None:
        self._writer.write(self.step, block, rows, experts)

    def close(self) -> None:
        self._writer.close()
        note_trace(self._model, self._path)


def budget_of(options: EngineOptions, memory: Memory) -> int | None:
    """Bytes; None: no budget, the system decides."""
    if options.memory == "auto":
        return memory.safe_budget()
    return options.memory_bytes


def plan_storage(
    checkpoint: Checkpoint, options: EngineOptions, memory: Memory | None = None
) -> tuple[Plan, int]:
    """What goes where, and how long the context may be."""
    memory = memory or read_memory()
    sizes = Sizes(checkpoint)
    budget = budget_of(options, memory)
    mode = options.streaming
    limit = checkpoint.config.context_length
    if budget is None and mode in ("auto", "direct"):
        whole = sizes.dense + sizes.source.total_bytes
        if mode == "direct" or whole > memory.safe_budget():
            budget = memory.safe_budget()  # mapping a file that is larger than memory is no way to run it

    def needs(context: int) -> Needs:
        layout = StateLayout(
            checkpoint.config, KV_DTYPES[options.kv_dtype], context, options.max_rewind, checkpoint.has_mtp
        )
        base = PROGRAM + PER_TOKEN * checkpoint.config.vocab_size
        state = state_bytes(layout, context) + (options.sessions - 1) * state_bytes(layout, context // 8)
        return Needs(base, state, row_bytes(checkpoint.config), block_bytes(checkpoint.config))

    context = options.context or limit
    if options.context is None and budget is not None:
        while context > SHORTEST and needs(context).state > budget // STATE_SHARE:
            context = max(SHORTEST, context // 2)
    plan = make_plan(
        checkpoint, needs(context), budget=budget, mode=mode, chunk=options.prefill_chunk, sizes=sizes
    )
    return plan, context


def state_bytes(layout: StateLayout, position: int) -> int:
    """A session's state when it has read so many tokens."""
    memory = SequenceMemory(layout)
    memory.position = position
    return memory.live_bytes()


def row_bytes(config: ModelConfig) -> int:
    """Memory that one row of a step takes from a layer's beginning to its end."""
    streams = config.streams * config.hidden
    projected = (
        config.q_rank + config.head_dim + 4 * config.head_dim + 4 * config.index_dim + config.index_heads
    )
    return 4 * (streams + projected + 6 * config.hidden)


def block_bytes(config: ModelConfig) -> int:
    """What the rows that are processed at a time inside a layer take besides."""
    queries = config.heads * config.head_dim + config.index_heads * config.index_dim + 2 * config.index_topk
    width = max(layer.expert_width for layer in config.layers)
    experts = 2 * (config.experts_used + 1) * width + 2 * config.hidden
    return 4 * BLOCK * (max(queries, experts) + config.o_groups * config.o_rank)


def open_storage(
    checkpoint: Checkpoint, ops: Ops, options: EngineOptions, fingerprint: Callable[[], str]
) -> Storage:
    """Makes the stores of the plan.  Weights are read when the model asks `dense` to load."""
    plan, context = plan_storage(checkpoint, options)
    simulate = options.simulate_low_precision
    source = find_source(checkpoint, options.pack)
    if plan.mode == "mmap" and options.trace is None:
        return Storage(plan, context, DenseWeights(checkpoint), MappedExperts(checkpoint, ops, simulate))
    reader, counters = Reader(), Counters([BlockCounters() for _ in source.blocks])
    slots = Slots(plan.experts_held + plan.ahead)
    policy = options.policy
    if policy == "auto":
        policy = choose_policy(fingerprint(), plan.experts_held) if plan.mode == "direct" else "lru"
    recorder = None if options.trace is None else Recorder(options, fingerprint, source)
    experts = StreamedExperts(
        source,
        ops,
        reader,
        make_cache(policy, plan.experts_held, source.slot_bytes, source.experts),
        slots,
        Ahead(source, reader, slots, plan.ahead, counters),
        counters,
        recorder=recorder,
        simulate_low_precision=simulate,
    )
    dense = LoadedDense(checkpoint, reader, plan.streamed, plan.slice_head)
    watch = None
    if options.memory == "auto" and plan.mode == "direct":
        watch = Watch(
            experts,
            lowest=2 * source.checkpoint.config.experts_used * plan.expert_bytes,
            highest=source.total_bytes,
        )
    return Storage(plan, context, dense, experts, reader, counters, recorder, watch)

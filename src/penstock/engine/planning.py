"""What an engine with these options would take of memory, before anything is loaded."""

from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from penstock.backend import open_backend
from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend
from penstock.backend.state import StateLayout, StatePool
from penstock.engine.options import EngineOptions
from penstock.errors import BudgetError, OptionError, PenstockError
from penstock.machine.gpu import read_gpus
from penstock.machine.memory import Memory, read_memory
from penstock.model import architecture
from penstock.storage.device_plan import plan_for_device
from penstock.storage.plan import Needs, Plan, plan_for_context
from penstock.storage.tiers.plan import plan_for_tiers
from penstock.weights.checkpoint import Checkpoint

# Bytes for each entry of the vocabulary: the tokenizer, and what holds answers to a form
PER_TOKEN: Final = 720
WORTH_A_GPU: Final = 1 << 30  # bytes of weights: compiled kernels and a driver's context take seconds


def state_layout(checkpoint: Checkpoint, options: EngineOptions, context: int) -> StateLayout:
    """What a session of so many tokens keeps."""
    return architecture(checkpoint.config).state_layout(
        checkpoint, kv_dtype=options.kv_dtype, context=context, max_rewind=options.max_rewind
    )


def open_states(backend: Backend, layout: StateLayout, plan: Plan) -> StatePool:
    """Memory for sequences; on a device as much as the plan has for them."""
    states = backend.states(layout)
    if isinstance(backend, DeviceBackend) and plan.most_state is not None:
        backend.limit(states, plan.most_state)
    return states


def choose_backend(checkpoint: Checkpoint, options: EngineOptions) -> Backend:
    """The device that the model runs on: the one that was named, or for "auto" a GPU that all of it fits in."""
    device, threads, rounded = options.device, options.thread_count, options.simulate_low_precision
    if device != "auto":
        return open_backend(device, threads, rounded)
    why = _no_gpu(checkpoint, options)
    if why is None:
        try:
            backend = open_backend("cuda", threads)
            plan_engine(checkpoint, options, backend, options.context)
            return backend
        except PenstockError as error:
            why = str(error)
    if options.vram is not None:
        raise OptionError(f"vram is {options.vram!r}, but the model runs on the CPU: {why}")
    return open_backend("cpu", threads, rounded)


def _no_gpu(checkpoint: Checkpoint, options: EngineOptions) -> str | None:
    """Why no GPU is worth a try, as far as can be told without starting it; None if one is."""
    weights = sum(info.nbytes for info in checkpoint.index.values())
    cards = read_gpus()
    if not cards:
        return "no GPU is used"
    if options.simulate_low_precision:
        return "simulate_low_precision is for the CPU"
    if options.trace is not None:
        return "a trace is recorded on the CPU"
    if weights < WORTH_A_GPU and options.vram is None:
        return "a model below a gigabyte is faster on the CPU than a GPU starts"
    if find_spec("torch") is None or find_spec("cuda") is None:
        return "a GPU needs `pip install penstock[cuda]`"
    return None


def plan_engine(
    checkpoint: Checkpoint,
    options: EngineOptions,
    backend: Backend,
    context: int | None,
    memory: Memory | None = None,
) -> tuple[Checkpoint, Plan, int]:
    """The model as an engine runs it, and `make_engine_plan` for that.  A draft block that nobody asked for is left
    out where others want its memory: experts, which would have to come and go, and on a device the context and the
    steps of prompts, which would have to be shorter.  An MTP block joins every row of a prompt's steps there, for
    which these would have to be."""
    alone, on_device = checkpoint.without_draft(), isinstance(backend, DeviceBackend)
    if options.draft == "auto" and on_device and checkpoint.has_mtp:
        checkpoint = alone
    if options.draft != "auto" or not checkpoint.has_draft:
        return checkpoint, *make_engine_plan(checkpoint, options, backend, context, memory)
    without = make_engine_plan(alone, options, backend, context, memory) if on_device else None
    with suppress(BudgetError):
        plan, tokens = make_engine_plan(checkpoint, options, backend, context, memory)
        same = without is None or (tokens, plan.chunk) == (without[1], without[0].chunk)
        if same and plan.tiers is None and plan.experts_held == plan.experts_total:
            return checkpoint, plan, tokens
    return alone, *(without or make_engine_plan(alone, options, backend, context, memory))


def make_engine_plan(
    checkpoint: Checkpoint,
    options: EngineOptions,
    backend: Backend,
    context: int | None,
    memory: Memory | None = None,
    *,
    state: int = 0,
    chunk: int | None = None,
) -> tuple[Plan, int]:
    """What goes where, and how long the context may be.

    context  how long it must be
    state    bytes that sessions need at least, whatever the length
    chunk    rows of a prefill step, as they were chosen before
    """
    memory = memory or read_memory()
    described = architecture(checkpoint.config)
    if isinstance(backend, DeviceBackend):
        return _device_plan(checkpoint, options, backend, context, memory)
    staged = state_layout(checkpoint, options, 1).live_bytes(0)

    def work(rows: int) -> int:
        """Of a step, with what it stages for a sequence until it is committed: as much as its rings hold."""
        each = described.step_bytes(checkpoint, backend, rows)  # stretches of layers do not share it
        return len(checkpoint.stretches) * each + staged + rows * shared

    # What experts of other machines give is kept by row and expert until all are there.
    config = checkpoint.config
    helped = options.cluster is not None and options.stages == 1
    shared = 4 * (config.experts_used + 1) * config.hidden if helped else 0

    def needs(length: int) -> Needs:
        layout = state_layout(checkpoint, options, length)
        # One session fills the context; the others have an eighth of it.
        state = layout.live_bytes(length) + (options.sessions - 1) * layout.live_bytes(length // 8)
        base = backend.program_bytes + PER_TOKEN * checkpoint.config.vocab_size
        return Needs(base, state, work, options.request_bytes)

    return plan_for_context(
        checkpoint,
        needs,
        budget=memory.safe_budget() if options.memory == "auto" else options.memory_bytes,
        mode=options.streaming,
        chunk=options.prefill_chunk or chunk,
        context=context,
        memory=memory,
        state=state,
        replanned=options.trace is None,  # a trace would end there
    )


def _device_plan(
    checkpoint: Checkpoint,
    options: EngineOptions,
    backend: DeviceBackend,
    context: int | None,
    memory: Memory,
) -> tuple[Plan, int]:
    """With all experts on the device if they fit, and else in tiers."""
    described = architecture(checkpoint.config)

    def state(length: int) -> int:
        return _device_state(checkpoint, options, backend, length)

    def work(rows: int) -> int:
        return described.step_bytes(checkpoint, backend, rows)

    shared: dict[str, Any] = {
        "chunk": options.prefill_chunk,
        "context": context,
        "kv_dtype": options.kv_dtype,
    }
    try:
        return plan_for_device(checkpoint, backend, state, work, budget=options.vram_bytes, **shared)
    except BudgetError:
        if options.vram_bytes is not None and options.vram_bytes > backend.free_bytes:
            raise
    return plan_for_tiers(
        checkpoint,
        backend,
        state,
        work,
        vram=options.vram_bytes,
        memory=memory.safe_budget() if options.memory == "auto" else options.memory_bytes,
        machine=memory,
        requests=options.request_bytes,
        **shared,
    )


def _device_state(checkpoint: Checkpoint, options: EngineOptions, backend: DeviceBackend, length: int) -> int:
    """One session fills the context; the others have an eighth of it."""
    layout = state_layout(checkpoint, options, length)
    others = (options.sessions - 1) * backend.state_bytes(layout, length // 8)
    return backend.state_bytes(layout, length) + others

"""What an engine with these options would take of memory, before anything is loaded."""

from typing import Final

from penstock.backend.base import Backend
from penstock.backend.state import StateLayout
from penstock.engine.options import EngineOptions
from penstock.machine.memory import Memory, read_memory
from penstock.model import architecture
from penstock.storage.plan import Needs, Plan, plan_for_context
from penstock.weights.checkpoint import Checkpoint

PER_TOKEN: Final = (
    720  # bytes for each entry of the vocabulary: the tokenizer, and what holds answers to a form
)


def state_layout(checkpoint: Checkpoint, options: EngineOptions, context: int) -> StateLayout:
    """What a session of so many tokens keeps."""
    return architecture(checkpoint.config).state_layout(
        checkpoint, kv_dtype=options.kv_dtype, context=context, max_rewind=options.max_rewind
    )


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
    staged = state_layout(checkpoint, options, 1).live_bytes(0)

    def work(rows: int) -> int:
        """Of a step, with what it stages for a sequence until it is committed: as much as its rings hold."""
        return described.step_bytes(checkpoint, backend, rows) + staged

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

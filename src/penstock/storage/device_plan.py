"""What goes where in a device's own memory, before anything is loaded: all weights, sessions, and a step's rows."""

from collections.abc import Callable
from typing import Any, Final

from penstock.backend.device import DeviceBackend
from penstock.errors import BudgetError
from penstock.sizes import write_amount
from penstock.storage.dense import EMBEDDING, HEAD
from penstock.storage.device import expert_infos
from penstock.storage.plan import RESERVED, SLACK, Plan
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.layout import Role
from penstock.weights.summary import roles

MODE: Final = "vram"
LEAST_ROWS: Final = 32  # of a step: fewer save nothing
BY_ROW: Final = (EMBEDDING, ".markov_w1.weight")  # what a token looks its row up in


def plan_for_device(
    checkpoint: Checkpoint,
    backend: DeviceBackend,
    state: Callable[[int], int],
    work: Callable[[int], int],
    *,
    budget: int | None,
    chunk: int | None,
    context: int | None,
    kv_dtype: str,
) -> tuple[Plan, int]:
    """The plan for a context of so many tokens (None: as long as fits), and how long the context may be.

    state   bytes of the sessions in use, at a context length
    work    bytes of a step with so many rows
    Raises BudgetError, with the smallest budget that works, if that is more than `budget` or than what is free.
    """
    config = checkpoint.config
    dense, stored = dense_bytes(checkpoint, backend)
    used = config.experts_used
    stacks = {block: expert_infos(checkpoint, block) for block in checkpoint.blocks}
    experts = {block: backend.stack_bytes(infos, used) for block, infos in stacks.items()}
    weights = backend.program_bytes + SLACK + dense + sum(experts.values())
    shortest = context or min(RESERVED, config.context_length)
    free = backend.free_bytes
    room = free if budget is None else budget
    # As many rows as there is room for beside the shortest context: memory that prompts are read fast with.
    most = min(backend.step_rows(config, kv_dtype, infos) for infos in stacks.values())
    rows = min(chunk or most, most)
    while chunk is None and rows > LEAST_ROWS and weights + work(rows) + state(shortest) > room:
        rows //= 2
    fixed = weights + work(rows)
    smallest = weights + work(min(rows, LEAST_ROWS) if chunk is None else rows) + state(shortest)
    if budget is not None and budget > free:
        raise BudgetError(
            f"vram is {write_amount(budget)}, and {write_amount(free)} of the GPU's memory are free"
        )
    if smallest > room:
        said = "are free" if budget is None else "is vram"
        raise BudgetError(
            f"this model needs {write_amount(smallest)} of the GPU's memory for a context of {shortest:,} tokens, "
            f"and {write_amount(room)} {said}: {write_amount(dense + sum(experts.values()))} for weights, "
            f"{write_amount(state(shortest))} for the context, the rest for the program and a step"
        )
    length = context or config.context_length
    while context is None and length > shortest and fixed + state(length) > room:
        length = max(shortest, length // 2)
    token: dict[str, Any] = {
        "dense": dense - stored,
        "experts": sum(
            size * used // config.experts for block, size in experts.items() if not block.startswith("mtp.")
        ),
    }
    largest = max(experts.values()) // config.experts
    plan = Plan(
        mode=MODE,
        budget=room,
        smallest=smallest,
        base=backend.program_bytes,
        state=state(length),
        requests=0,  # in the host's memory
        chunk=rows,
        work=work(rows),
        dense=dense,
        dense_held=dense,
        dense_buffers=0,
        streamed=(),
        slice_head=False,
        experts_total=sum(experts.values()),
        experts_held=sum(experts.values()),
        experts_fewest=sum(experts.values()),
        ahead=0,
        expert_bytes=largest,
        read_by_token=token,
    )
    return plan, length


def dense_bytes(checkpoint: Checkpoint, backend: DeviceBackend) -> tuple[int, int]:
    """Bytes of all weights but the routed experts, and of those of which a token needs a row: embeddings, tables."""
    total = stored = 0
    for name, role in roles(checkpoint).items():
        info = checkpoint.index[name]
        if role is Role.ROUTED or len(info.shape) < 2:
            continue
        table = role is Role.HASH_TABLE
        by_row = name.endswith(BY_ROW)
        size = 4 * info.shape[0] * info.shape[1] if table else backend.weight_bytes(info, by_row)
        total += size
        if table or (name != HEAD and info.shape[0] == checkpoint.config.vocab_size):
            stored += size
    return total, stored

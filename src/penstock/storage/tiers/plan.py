"""What goes where if a device cannot hold all experts: its memory, and the host's.

On the device: the program, weights of every token, sessions, the rows of a short step, and slots for experts with
all that is left.  The rows of a long step take the memory of some slots while it lasts.  On the host: all experts
where its memory has room for them, or as many as fit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.backend.device import DeviceBackend
from penstock.errors import BudgetError
from penstock.machine.disk import IN_MEMORY, find_disk
from penstock.machine.memory import Memory
from penstock.sizes import write_amount
from penstock.storage.device import expert_infos
from penstock.storage.device_plan import LEAST_ROWS, dense_bytes
from penstock.storage.plan import AHEAD, RESERVED, SLACK, Plan
from penstock.storage.source import ExpertSource
from penstock.storage.tiers.placement import fewest_slots
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import TensorInfo

MODE: Final = "tiers"
PASSING: Final = 128  # slots that experts of a long step pass through, at least
PASSING_SHARE: Final = 4  # of the slots of a long step, a quarter: two whole layers where there is room
HOST_PROGRAM: Final = 2 << 30  # of the host: interpreter, the driver's libraries, what loading passes through


@dataclass(frozen=True)
class Kind:
    """Experts that share slots: those of some blocks, by number."""

    blocks: tuple[int, ...]
    slots: int
    long_slots: int  # while a long step takes the memory of the others
    fewest: int
    step: int  # slots whose memory comes and goes together
    slot_bytes: int
    passing: int


@dataclass(frozen=True)
class TierPlan:
    """The tiers of a plan: slots on the device, and in bytes what the host has."""

    kinds: tuple[Kind, ...]
    long_work: int  # of the device: what a long step takes from slots
    whole: bool  # the host has all experts, in the mapped file
    budget: int | None  # of the host
    base: int
    held: int  # experts, at most
    ahead: int
    smallest: int

    @property
    def total(self) -> int:
        """The host's memory in use when everything is full; of a mapped file nothing counts, which others share."""
        return self.base + (0 if self.whole else self.held + self.ahead)

    @property
    def slots(self) -> int:
        return sum(kind.slots for kind in self.kinds)

    @property
    def spare(self) -> int:
        """Bytes of the device that experts can do without, in long steps too."""
        return sum((kind.long_slots - kind.fewest) * kind.slot_bytes for kind in self.kinds)


def plan_for_tiers(
    checkpoint: Checkpoint,
    backend: DeviceBackend,
    state: Callable[[int], int],
    work: Callable[[int], int],
    *,
    vram: int | None,
    memory: int | None,
    machine: Memory,
    requests: int,
    chunk: int | None,
    context: int | None,
    kv_dtype: str,
) -> tuple[Plan, int]:
    """As `plan_for_device`; vram, memory: budgets of the device and of the host."""
    config, source = checkpoint.config, ExpertSource(checkpoint)
    used, experts = config.experts_used, config.experts
    groups = _kinds(checkpoint)
    sizes = [backend.slot_bytes(infos, used) for infos, _ in groups]
    if None in sizes:
        kind = "/".join(info.kind.name for info in groups[sizes.index(None)][0][0])
        raise BudgetError(
            f"experts of type {kind} cannot come and go on a GPU: all of them have to fit in its memory"
        )
    slot_bytes = [size for size in sizes if size is not None]
    bringing = sum(backend.bringing_bytes(infos) for infos, _ in groups)
    dense, stored = dense_bytes(checkpoint, backend)
    passing = 2 * min(PASSING // 2, experts)
    fewest = fewest_slots(experts, used, passing)
    steps = [backend.slot_step(infos[0]) for infos, _ in groups]
    each = [
        _whole(fewest, step, experts * len(blocks)) for (_, blocks), step in zip(groups, steps, strict=True)
    ]
    room = backend.free_bytes if vram is None else vram
    least = sum(count * size for count, size in zip(each, slot_bytes, strict=True))
    weights = backend.program_bytes + SLACK + dense + bringing
    shortest = context or min(RESERVED, config.context_length)
    most = min(backend.step_rows(config, kv_dtype, infos) for infos, _ in groups)
    rows = min(chunk or most, most)
    short = work(min(rows, LEAST_ROWS))
    smallest = weights + state(shortest) + least + (short if chunk is None else work(rows))
    if smallest > room:
        raise BudgetError(
            f"this model needs {write_amount(smallest)} of the GPU's memory with experts that come and go, for a "
            f"context of {shortest:,} tokens, and {write_amount(room)} {'are free' if vram is None else 'is vram'}"
        )
    left = room - weights - short - state(shortest)  # for slots
    while chunk is None and rows > LEAST_ROWS and work(rows) - short + least > left:
        rows //= 2
    long_work = max(0, work(rows) - short)
    kinds = tuple(
        Kind(tuple(blocks), 0, 0, count, step, size, passing)
        for (_, blocks), count, step, size in zip(groups, each, steps, slot_bytes, strict=True)
    )
    kinds = _divide(kinds, left, left - long_work, experts)
    held = sum(kind.slots * kind.slot_bytes for kind in kinds)
    total = sum(experts * len(kind.blocks) * kind.slot_bytes for kind in kinds)
    token: dict[str, Any] = {
        "dense": dense - stored,
        "experts": sum(
            used * kind.slot_bytes
            for kind in kinds
            for block in kind.blocks
            if source.blocks[block] != "mtp.0"
        ),
    }
    plan = Plan(
        mode=MODE,
        budget=room,
        smallest=smallest,
        base=backend.program_bytes + bringing,
        state=state(shortest),
        requests=0,  # in the host's memory
        chunk=rows,
        work=short,
        dense=dense,
        dense_held=dense,
        dense_buffers=0,
        streamed=(),
        slice_head=False,
        experts_total=total,
        experts_held=held,
        experts_fewest=least,
        ahead=0,
        expert_bytes=max(slot_bytes),
        read_by_token=token,
        tiers=_host(source, kinds, long_work, memory, machine, requests, checkpoint),
    )
    return plan, shortest if context is not None else _longest(state, plan, config.context_length, shortest)


def _kinds(checkpoint: Checkpoint) -> list[tuple[Sequence[Sequence[TensorInfo]], list[int]]]:
    """Experts of the first block of each kind, and the blocks."""
    found: dict[tuple[Any, ...], tuple[Sequence[Sequence[TensorInfo]], list[int]]] = {}
    for number, block in enumerate(checkpoint.blocks):
        infos = expert_infos(checkpoint, block)
        key = tuple((info.kind.name, info.shape) for info in infos[0])
        found.setdefault(key, (infos, []))[1].append(number)
    return list(found.values())


def _divide(kinds: tuple[Kind, ...], room: int, long_room: int, experts: int) -> tuple[Kind, ...]:
    """All kinds hold the same share of their experts beyond what each of them needs."""
    least = sum(kind.fewest * kind.slot_bytes for kind in kinds)
    more = [experts * len(kind.blocks) - kind.fewest for kind in kinds]
    whole = sum(count * kind.slot_bytes for count, kind in zip(more, kinds, strict=True))

    def slots(kind: Kind, count: int, nbytes: int) -> int:
        share = min(1.0, max(0, nbytes - least) / whole) if whole > 0 else 0.0
        return kind.fewest + (count if share == 1.0 else int(count * share) // kind.step * kind.step)

    found = []
    for kind, count in zip(kinds, more, strict=True):
        long_slots = slots(kind, count, long_room)
        passing = max(kind.passing, min(2 * experts, long_slots // PASSING_SHARE)) // 2 * 2
        found.append(replace(kind, slots=slots(kind, count, room), long_slots=long_slots, passing=passing))
    return tuple(found)


def _whole(slots: int, step: int, most: int) -> int:
    return min(most, -(-slots // step) * step)


def _host(
    source: ExpertSource,
    kinds: tuple[Kind, ...],
    long_work: int,
    memory: int | None,
    machine: Memory,
    requests: int,
    checkpoint: Checkpoint,
) -> TierPlan:
    base, expert, everything = HOST_PROGRAM + requests, max(source.slot_bytes), source.total_bytes
    fewest = 2 * checkpoint.config.experts_used * expert
    smallest = base + fewest
    budget = machine.safe_budget() if memory is None and everything > machine.safe_budget() else memory
    whole = budget is None or base + everything <= budget or in_memory(checkpoint)
    if whole or budget is None:
        return TierPlan(kinds, long_work, True, budget, base, everything, 0, smallest)
    if budget < smallest:
        raise BudgetError(
            f"memory is {write_amount(budget)}, and {write_amount(smallest)} are needed beside the GPU: "
            f"{write_amount(base)} for the program, the rest for experts that are in use at a time"
        )
    ahead = min(AHEAD, max(0, (budget - smallest) // (4 * expert))) * expert
    held = min(budget - base - ahead, everything)
    return TierPlan(kinds, long_work, False, budget, base, held, ahead, smallest)


def memory_share(plan: Plan, device: float) -> float:
    """Of the experts that a device lacks, which has such a share of all, those that the host's memory holds."""
    assert plan.tiers is not None
    elsewhere = plan.experts_total * (1 - device)
    return 1.0 if plan.tiers.whole or elsewhere <= 0 else min(1.0, plan.tiers.held / elsewhere)


def in_memory(checkpoint: Checkpoint) -> bool:
    """Whether the files lie in a disk that is memory itself."""
    return all(
        file.path.exists() and find_disk(file.path).filesystem in IN_MEMORY for file in checkpoint.files
    )


def _longest(state: Callable[[int], int], plan: Plan, limit: int, shortest: int) -> int:
    """How long a context may grow if half of the slots that can be spared give way to it."""
    spare = max(0, plan.experts_held - plan.experts_fewest) // 2
    length = limit
    while length > shortest and state(length) > plan.state + spare:
        length = max(shortest, length // 2)
    return length

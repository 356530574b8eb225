"""What goes where: how a budget of memory is shared out before anything is loaded.

In this order: the process itself, the attention state of one session, the rows of a prefill chunk, a few experts.
Then the weights that every token reads, because a byte of them in memory saves reading it with every token; blocks
that do not fit take turns in two buffers.  All that is left belongs to the experts.

Where no length of context is asked for, there is state for a short one, and experts give way to sessions that grow
beyond it: `Plan.most_state` says how far.  Then a new plan is made, with more state and fewer weights that stay.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BudgetError
from penstock.machine.memory import Memory
from penstock.sizes import write_amount
from penstock.storage.bundle import Bundle
from penstock.storage.dense import BUFFERS, EMBEDDING, HEAD, block_of, slices
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.layout import Role
from penstock.weights.summary import roles

if TYPE_CHECKING:
    from penstock.storage.tiers.plan import TierPlan

CHUNKS: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # rows of a prefill step that a plan chooses from
RESERVED: Final = 4096  # tokens of context that have their place before anything is given up for more
LENGTHS: Final = 1024  # tokens in which a context that follows from the budget is counted
CHUNK_SHARE: Final = 12  # of the budget, at most a twelfth for the rows of a chunk
AHEAD: Final = 12  # experts read before anybody has asked for them, at most
SLACK: Final = (
    48 << 20
)  # large pages that are not full, memory of threads, what the system keeps for the process


@dataclass(frozen=True)
class Needs:
    """What the rest of the process takes, in bytes."""

    base: int  # interpreter, libraries, tokenizer, tables
    state: int  # the sessions that are in use at a time
    work: Callable[[int], int]  # working memory of a step with so many rows
    requests: int = 0  # of a server, on their way to prompts


@dataclass(frozen=True)
class Plan:
    """What goes where, in bytes.  `budget` is None where the system decides what stays in memory."""

    mode: str  # "mmap", "direct" or "resident"
    budget: int | None
    smallest: int  # the least budget that works
    base: int
    state: int
    chunk: int  # rows
    work: int  # their memory
    requests: int  # what a server's requests may take on their way to prompts
    dense: int  # weights every token needs, in all
    dense_held: int
    dense_buffers: int
    streamed: tuple[str, ...]  # blocks that take turns in the buffers
    slice_head: bool
    experts_total: int
    experts_held: int
    experts_fewest: int  # bytes of them that a step cannot do without
    ahead: int
    expert_bytes: int  # of the largest expert
    read_by_token: dict[str, int]  # bytes of a token: "dense" from memory or disk, "experts"
    tiers: "TierPlan | None" = None  # where a device holds only some of the experts

    @property
    def total(self) -> int:
        """Memory in use when everything is full."""
        held = self.dense_held + self.dense_buffers + self.experts_held + self.ahead
        return self.base + SLACK + self.state + self.requests + self.work + held

    @property
    def most_state(self) -> int | None:
        """Bytes that sessions may take if experts give way to them; None without a limit."""
        if self.budget is None:
            return None
        given_up = max(0, self.experts_held - self.experts_fewest) if self.mode == "direct" else 0
        if self.tiers is not None:  # a long step has to do with what is left
            given_up = self.tiers.spare
        return self.state + max(0, self.budget - self.total) + given_up

    def hit_rate(self) -> float:
        """Of uniform routing: the share of experts that are in memory."""
        return min(1.0, self.experts_held / self.experts_total) if self.experts_total else 1.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"total": self.total, "hit_rate_uniform": self.hit_rate()}


class Sizes:
    """Bytes of a model's parts, as they lie in memory."""

    def __init__(self, checkpoint: Checkpoint):
        self.source = ExpertSource(checkpoint)
        matrices: dict[str, list[Any]] = {}
        self.tables = 0
        for name, role in roles(checkpoint).items():
            info = checkpoint.index[name]
            if role is Role.HASH_TABLE:
                self.tables += 8 * info.shape[0] * info.shape[1]
            elif role is not Role.ROUTED and name not in (EMBEDDING, HEAD) and len(info.shape) > 1:
                matrices.setdefault(block_of(name), []).append(info)
        self.blocks = Counter({block: Bundle.of(infos).nbytes for block, infos in matrices.items()})
        self.head = self.slices = 0
        if checkpoint.is_last:
            self.head = Bundle.of([checkpoint.index[HEAD]]).nbytes
            self.slices = BUFFERS * max(part.nbytes for part in slices(checkpoint.index[HEAD]))
        self.order = [block for block in checkpoint.blocks if block in self.blocks]

    @property
    def dense(self) -> int:
        return self.blocks.total() + self.head


def make_plan(
    checkpoint: Checkpoint,
    needs: Needs,
    *,
    budget: int | None,
    mode: str = "auto",
    chunk: int | None = None,
    sizes: Sizes | None = None,
) -> Plan:
    """Raises BudgetError, with the smallest budget that works, if `budget` is below it."""
    sizes = sizes or Sizes(checkpoint)
    source, config = sizes.source, checkpoint.config
    needs = replace(needs, base=needs.base + sizes.tables)
    expert = max(source.slot_bytes)
    used = config.experts_used
    sizes_by_block = zip(source.blocks, source.slot_bytes, strict=True)
    reads = {
        "dense": sizes.dense,
        "experts": sum(used * size for block, size in sizes_by_block if not block.startswith("mtp.")),
    }
    fewest = 2 * used * expert
    shared: dict[str, Any] = {
        "base": needs.base,
        "state": needs.state,
        "requests": needs.requests,
        "dense": sizes.dense,
        "experts_total": source.total_bytes,
        "experts_fewest": fewest,
        "expert_bytes": expert,
        "read_by_token": reads,
    }

    fixed = needs.base + SLACK + needs.state + needs.requests
    outside = sizes.blocks[""]
    buffers = BUFFERS * max(sizes.blocks[block] for block in sizes.order)
    first_chunk = chunk or CHUNKS[0]
    smallest = fixed + needs.work(first_chunk) + fewest + min(sizes.dense, outside + buffers + sizes.slices)

    everything = fixed + needs.work(chunk or 512) + sizes.dense + source.total_bytes
    if mode == "auto":
        mode = "mmap" if budget is None or everything <= budget else "direct"
    if mode != "direct" or budget is None:
        if budget is not None and everything > budget:
            raise BudgetError(
                f"streaming is {mode!r}, which holds the whole model: {write_amount(everything)}, and memory is "
                f"{write_amount(budget)}.  streaming 'direct' works from {write_amount(smallest)} on"
            )
        rows = chunk or 512
        return Plan(
            mode=mode,
            budget=budget,
            smallest=smallest,
            chunk=rows,
            work=needs.work(rows),
            dense_held=sizes.dense,
            dense_buffers=0,
            streamed=(),
            slice_head=False,
            experts_held=source.total_bytes,
            ahead=0,
            **shared,
        )
    if budget < smallest:
        raise BudgetError(
            f"memory is {write_amount(budget)}, and this model needs {write_amount(smallest)} at least: "
            f"{write_amount(needs.base + SLACK)} for the program, {write_amount(needs.state)} for the context, "
            f"{write_amount(smallest - fixed)} for the weights that are in use at a time"
        )
    rows = chunk or max(
        size for size in CHUNKS if size == CHUNKS[0] or needs.work(size) <= budget // CHUNK_SHARE
    )
    while rows > first_chunk and budget - (smallest - needs.work(first_chunk)) < needs.work(rows):
        rows //= 2
    room = budget - fixed - needs.work(rows) - fewest
    streamed, slice_head = _streamed(sizes, room)
    held = sizes.dense - sum(sizes.blocks[block] for block in streamed) - (sizes.head if slice_head else 0)
    buffered = BUFFERS * max((sizes.blocks[block] for block in streamed), default=0)
    buffered += sizes.slices if slice_head else 0
    left = room + fewest - held - buffered
    ahead = min(AHEAD, max(0, (left - fewest) // (4 * expert))) * expert
    return Plan(
        mode="direct",
        budget=budget,
        smallest=smallest,
        chunk=rows,
        work=needs.work(rows),
        dense_held=held,
        dense_buffers=buffered,
        streamed=streamed,
        slice_head=slice_head,
        experts_held=min(left - ahead, source.total_bytes),
        ahead=ahead,
        **shared,
    )


def plan_for_context(
    checkpoint: Checkpoint,
    needs: Callable[[int], Needs],
    *,
    budget: int | None,
    mode: str,
    chunk: int | None,
    context: int | None,
    memory: Memory,
    state: int = 0,
    replanned: bool = True,
) -> tuple[Plan, int]:
    """The plan for a context of so many tokens (None: for a short one that may grow), and how long it may be.

    needs      what the rest takes at a context length
    state      bytes that sessions need at least
    replanned  whether another plan is made when sessions need more than this one can give them
    """
    sizes = Sizes(checkpoint)
    if budget is None and mode in ("auto", "direct"):
        whole = sizes.dense + sizes.source.total_bytes
        if mode == "direct" or whole > memory.safe_budget():
            budget = memory.safe_budget()  # mapping a file that is larger than memory is no way to run it
    limit = checkpoint.config.context_length
    reserved = context or min(limit, RESERVED if budget is not None else limit)
    now = needs(reserved)
    now = replace(now, state=max(now.state, state))
    plan = make_plan(checkpoint, now, budget=budget, mode=mode, chunk=chunk, sizes=sizes)
    most = plan.most_state
    if budget is not None and replanned and mode in ("auto", "direct"):
        # What a plan with chunks of the same size can have at most, if hardly any weight stays.
        most = budget - (plan.smallest - plan.state) - (plan.work - now.work(chunk or CHUNKS[0]))
    if context is not None or most is None or needs(limit).state <= most:
        return plan, context or limit
    longer = bisect_right(range(reserved, limit, LENGTHS), most, key=lambda length: needs(length).state)
    return plan, reserved + LENGTHS * max(0, longer - 1)


def _streamed(sizes: Sizes, room: int) -> tuple[tuple[str, ...], bool]:
    """The blocks that cannot stay, as few as possible and spread evenly, and whether the output matrix cannot."""
    if sizes.dense <= room:
        return (), False
    for slice_head in (False, True):
        head = sizes.slices if slice_head else sizes.head
        for count in range(BUFFERS + 1, len(sizes.order) + 1):
            streamed = _spread(sizes.order, count)
            staying = sizes.blocks.total() - sum(sizes.blocks[block] for block in streamed)
            if staying + head + BUFFERS * max(sizes.blocks[block] for block in streamed) <= room:
                return streamed, slice_head
    return tuple(sizes.order), True


def _spread(blocks: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` of the blocks, evenly spread, so that reading one has the time that the others in between compute."""
    total = len(blocks)
    return tuple(block for at, block in enumerate(blocks) if (at + 1) * count // total > at * count // total)

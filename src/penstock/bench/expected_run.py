"""A run of a model played through with measured costs in place of kernels and disk.

Layer by layer as the engine goes: what stays is computed, experts that are missing are asked for at once, hits are
computed meanwhile, weights without a place of their own are read ahead.  The cache and its policy are the engine's;
only the kernels and the disk are replaced by the time that they take.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.bench.costs import Costs, LayerCosts
from penstock.bench.missing_weights import Handling
from penstock.bench.routing import Routing
from penstock.bench.timeline import Timeline
from penstock.machine.cpu import read_cpu
from penstock.storage.cache import Cache, make_cache
from penstock.storage.dense import BUFFERS
from penstock.storage.gate import TRIAL
from penstock.storage.plan import Plan, Sizes
from penstock.storage.prefetch import GUESSED_ROWS, WORTH
from penstock.storage.read_speed import ReadSpeed
from penstock.weights.checkpoint import Checkpoint

FEW_CHUNKS: Final = 6  # of a prompt
UNTRIED: Final = 0.35  # of guesses about the next layer's experts, the share that is taken to be right
SETTLING: Final = 16  # tokens after which a full cache has found its ways
SETTLED: Final = 2  # times that memory has been read to, after which it is as quick as it gets


@dataclass(frozen=True)
class Phase:
    """Some tokens, the seconds that they take, those of them spent waiting for the disk, and what is read."""

    tokens: int
    seconds: float
    waiting: float
    disk_bytes: float
    hit_rate: float

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Ahead:
    """Experts of a layer that are read before it asks, and their read."""

    count: float
    read: int
    wrong: int | None = None  # the read of those that it will not ask for


@dataclass(frozen=True)
class Missing:
    """Experts that a layer has to wait for: until when, and those of them that are on their way already."""

    count: int
    there: float
    early: float
    ahead: Ahead | None


class ExpectedRun:
    """One run, step by step."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: Plan,
        costs: Costs,
        disk: ReadSpeed,
        routing: Routing,
        policy: str = "lfru",
        handling: Handling = Handling(),
        guesses_right: float = UNTRIED,
        fresh: float = 0.0,
        young: float = 0.0,
        sizes: Sizes | None = None,
        forgotten: float = 0.0,
    ):
        """guesses_right: of those about the next layer's experts, the share that is; fresh: seconds that a byte takes
        to become memory, by one core; young: seconds longer that it takes to be read there for the second time;
        forgotten: the share of what has been read that is as slow to read as what has not."""
        self.config, self.plan, self.costs, self.routing = checkpoint.config, plan, costs, routing
        self.handling, self.guesses_right, self.fresh, self.young = handling, guesses_right, fresh, young
        self.forgotten, self._cold = forgotten, disk.cold
        self._cores = read_cpu().usable
        self._layers = [checkpoint.config.layers[number] for number in checkpoint.layers]
        self._blocks = [f"blk.{number}" for number in checkpoint.layers]
        self._filled = 0  # bytes of the cache that have been memory
        self._filled_ahead = 0.0  # and of the room for what is read ahead
        self._reads: dict[int, int] = {}  # by expert in the cache: how often its slot has been read to
        self._free: list[int] = []  # the same, of slots without an expert
        self._read: set[int] = set()  # experts that came from the disk before
        self.sizes = sizes or Sizes(checkpoint)
        self.time = Timeline(disk.latency, disk.bytes_per_second)
        self.position = self.hits = self.misses = 0
        self.guesses = 0.0  # about experts, made so far
        source = self.sizes.source
        self.cache: Cache | None = None
        if plan.mode == "direct":
            self.cache = make_cache(policy, plan.experts_held, source.slot_bytes, source.experts)
        slots = plan.experts_held / max(source.slot_bytes)
        self._many = handling.many_with(slots, 2 * self.config.experts_used)
        self._seen: list[set[int]] = [set() for _ in costs.layers]  # experts of a mapped file that were used
        self._streamed = [block for block in self.sizes.order if block in plan.streamed]
        self._coming: dict[str, int] = {}  # streamed block → its read
        for block in self._streamed[:BUFFERS]:
            self._read_block(block)

    def fill(self, keys: Sequence[int], reads: int = 1) -> None:
        """The cache holds these experts, as many as fit, the first ones longest; their slots were read to before."""
        if self.cache is not None:
            for key in keys:
                if self.cache.used + self.sizes.source.size_of(key) > self.cache.capacity:
                    return
                list(self.cache.request([key]))
                self._reads[key] = reads

    def settle(self, position: int) -> None:
        """It is there after long: all has been read before, and guesses have been tried."""
        self._read.update(range(len(self._layers) * self.sizes.source.experts))
        self.position, self.guesses = position, TRIAL
        self.decode(SETTLING)

    def prefill(self, tokens: int) -> Phase:
        """A prompt.  Of one with many chunks the first few are played; the others are like the last of them."""
        begin = before = self._mark()
        chunks = [min(self.plan.chunk, tokens - at) for at in range(0, tokens, self.plan.chunk)]
        for rows in chunks[:FEW_CHUNKS]:
            before = self._mark()
            self._step(rows, logits=False)
        played = self._since(begin, sum(chunks[:FEW_CHUNKS]))
        last, more = self._since(before, chunks[0]), (tokens - played.tokens) / chunks[0]
        return replace(
            played,
            tokens=tokens,
            seconds=played.seconds + more * last.seconds + self.costs.head,
            waiting=played.waiting + more * last.waiting,
            disk_bytes=played.disk_bytes + more * last.disk_bytes,
        )

    def decode(self, tokens: int) -> Phase:
        begin = self._mark()
        for _ in range(tokens):
            self._step(1, logits=True)
        return self._since(begin, tokens)

    def _mark(self) -> tuple[float, float, float, int, int]:
        return self.time.now, self.time.waited, self.time.disk_bytes, self.hits, self.misses

    def _since(self, mark: tuple[float, float, float, int, int], tokens: int) -> Phase:
        now, waited, read, hits, misses = (
            after - before for after, before in zip(self._mark(), mark, strict=True)
        )
        return Phase(tokens, now, waited, read, hits / (hits + misses) if hits + misses else 1.0)

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, rows: int, logits: bool) -> None:
        time = self.time
        time.compute(self.costs.step.at(rows))
        if rows > 1 and not self.position:
            time.compute(self.costs.start + self.plan.work * min(1, rows / self.plan.chunk) * self.fresh)
        chosen = [self.routing.draw(number, rows) for number in range(len(self._layers))]
        ahead = self._announce(chosen)
        for number, costs in enumerate(self.costs.layers):
            block = self._blocks[number]
            if block in self._coming:
                time.wait_ahead(self._coming.pop(block))
            time.compute(costs.rest.at(rows) + rows * costs.deeper * (self.position + rows / 2))
            if self.cache is None:
                new = set(chosen[number]) - self._seen[number]
                self._seen[number] |= new
                time.compute(costs.mapped + len(new) * costs.described)
                time.compute(self._computing(costs, rows, len(chosen[number])))
            else:
                missing = self._ask(self.cache, number, rows, chosen[number], ahead.pop(number, None))
                if rows <= GUESSED_ROWS and number + 1 < len(chosen):
                    self._guess(number + 1, chosen[number + 1], ahead)
                self._compute(costs, rows, len(chosen[number]), missing)
            if block in self._streamed:
                place = self._streamed.index(block)
                self._read_block(self._streamed[(place + BUFFERS) % len(self._streamed)])
        if logits:
            if self.plan.slice_head:
                time.wait(time.ask(self.sizes.head) - self.costs.head)
            time.compute(self.costs.head + self.costs.token)
        self.position += rows

    def _read_block(self, block: str) -> None:
        self.time.compute(self.handling.block)
        self._coming[block] = self.time.ask_ahead(self.sizes.blocks[block])

    def _computing(self, costs: LayerCosts, rows: int, experts: int) -> float:
        """Seconds of a layer's experts."""
        return costs.shared.at(rows) + experts * costs.routed.at(rows * self.config.experts_used / experts)

    # ── experts that come and go ──────────────────────────────────────────────────────────────────────────

    def _announce(self, chosen: Sequence[list[int]]) -> dict[int, Ahead]:
        """Experts that follow from the tokens alone are read ahead, as far as there is room: by number of block."""
        ahead: dict[int, Ahead] = {}
        if self.cache is not None:
            for number, layer in enumerate(self._layers):
                if layer.hashed:
                    self._read_ahead(number, self._absent(number, chosen[number]), ahead)
        return ahead

    def _guess(self, number: int, chosen: list[int], ahead: dict[int, Ahead]) -> None:
        """The next layer's experts, some of which are those that it will ask for."""
        trying = self.guesses < TRIAL or self.guesses_right >= WORTH
        if trying and self.plan.ahead and not self._layers[number].hashed:
            self.time.compute(self.handling.guess)
            self._read_ahead(number, self._absent(number, chosen), ahead, self.guesses_right)

    def _read_ahead(
        self, number: int, count: int, ahead: dict[int, Ahead], right: float | None = None
    ) -> None:
        """right: the share that will be asked for, of experts that are only guessed."""
        size = self.sizes.source.slot_bytes[number]
        taken = sum(each.count * self.sizes.source.slot_bytes[block] for block, each in ahead.items())
        count = min(count, int(self.plan.ahead - taken) // size)
        if count <= 0:
            return
        self.time.compute(max(0, taken + count * size - self._filled_ahead) * self.fresh / self._cores)
        self._filled_ahead = max(self._filled_ahead, taken + count * size)
        self.time.compute(count * self.handling.asking)
        nbytes = count * self.sizes.source.useful_bytes[number]
        if right is None:
            ahead[number] = Ahead(count, self.time.ask_ahead(nbytes))
        else:
            self.guesses += count
            wrong = self.time.ask_ahead((1 - right) * nbytes)
            ahead[number] = Ahead(right * count, self.time.ask_ahead(right * nbytes), wrong)

    def _absent(self, number: int, chosen: list[int]) -> int:
        assert self.cache is not None
        return sum(number * self.sizes.source.experts + expert not in self.cache for expert in chosen)

    def _ask(self, cache: Cache, number: int, rows: int, chosen: list[int], ahead: Ahead | None) -> Missing:
        """The cache decides, and what is missing is asked for."""
        source = self.sizes.source
        missing = young = new = 0
        for key, hit, evicted, _ in cache.request([number * source.experts + expert for expert in chosen]):
            self._free += [self._reads.pop(gone) for gone in evicted]
            if not hit:
                reads = self._free.pop() if self._free else 0
                self._reads[key] = reads + 1
                missing += 1
                young += 0 < reads < SETTLED
                new += key not in self._read
                self._read.add(key)
        self.hits += len(chosen) - missing
        self.misses += missing
        early = min(float(missing), ahead.count) if ahead else 0.0
        there = 0.0
        if missing > early:
            if rows <= GUESSED_ROWS:
                self.time.compute((missing - early) * self.handling.asking)
            nbytes = (missing - early) * source.useful_bytes[number]
            cold = new + self.forgotten * (missing - new)
            there = self.time.ask(nbytes, (young * self.young + cold * self._cold) * nbytes / missing)
        # Those who read make the memory, while the disk is at work for others of them.
        self.time.compute(max(0, cache.used - self._filled) * self.fresh / self._cores)
        self._filled = max(self._filled, cache.used)
        return Missing(missing, there, early, ahead)

    def _compute(self, costs: LayerCosts, rows: int, experts: int, missing: Missing) -> None:
        """Few rows: hits first, then what comes as it comes; many: in order of number, reading meanwhile.  Either way
        the last one to come is computed when it is there."""
        time, computing = self.time, self._computing(costs, rows, experts)
        each = costs.routed.at(rows * self.config.experts_used / experts)
        last, handling = each if missing.count else 0.0, 0.0
        if rows > GUESSED_ROWS:
            time.compute(missing.count * self._many - missing.early * self.handling.asking)
        elif missing.count:
            handling = self.handling.first + (missing.count - 1) * self.handling.further
            handling = max(0.0, handling - missing.count * self.handling.asking)
        time.compute(self.handling.hits + computing - last)
        if missing.ahead:
            time.wait_ahead(missing.ahead.read)
            if missing.ahead.wrong is not None:
                time.drop(missing.ahead.wrong)
        time.wait(missing.there)
        time.compute(handling + last)

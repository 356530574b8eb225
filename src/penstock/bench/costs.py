"""How long each part of a model takes on this machine: measured once per machine and kind of layer, and noted."""

import hashlib
from typing import Any, Final, NamedTuple

from penstock.backend.base import Backend
from penstock.bench.imagined_layers import ImaginedLayers, imagined_like
from penstock.bench.token_overhead import Overhead, token_overhead
from penstock.machine.cpu import read_cpu
from penstock.machine.measured_once import MeasuredOnce
from penstock.machine.memory import read_memory
from penstock.native.library import find, instruction_set
from penstock.weights.checkpoint import Checkpoint

ROWS: Final = (1, 16, 48)  # of a step, for all but the experts
LONG: Final = 256  # rows that are measured too where it takes no time: small models do better with many
QUICK: Final = 5e-3  # seconds of a layer with the most of ROWS
EXPERT_ROWS: Final = (1, 4, 16, 64)  # that choose the same expert
ROUNDS: Final = 3  # of measuring
NEAR, FAR = 512, 16384  # positions between which attention is seen to grow


class Curve(NamedTuple):
    """Seconds by number of rows, linear between those that were measured and beyond the last.

    >>> curve = Curve((1, 3), (1.0, 2.0))
    >>> curve.at(2), curve.at(5)
    (1.5, 3.0)
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: float) -> float:
        last = next((n for n in range(1, len(self.rows)) if rows <= self.rows[n]), len(self.rows) - 1)
        (low, high), (first, second) = self.rows[last - 1 : last + 1], self.seconds[last - 1 : last + 1]
        return max(0.0, first + (second - first) * (rows - low) / (high - low))


class LayerCosts(NamedTuple):
    """A layer without its experts, by the rows of a step, and its experts, by the rows that each one sees."""

    rest: Curve
    deeper: float  # seconds more for a row, per token of context before it
    shared: Curve
    routed: Curve  # one expert
    mapped: float  # handing experts over where all are at hand
    described: float  # an expert that is used for the first time


class Costs(NamedTuple):
    """Seconds: of every layer; of a row of logits and a token drawn from it; of what else a step takes, by rows; of
    what the engine does for a token of an answer besides; of drafts, where anybody tries them; and of what an engine
    does only once, with its first prompt."""

    layers: tuple[LayerCosts, ...]
    head: float
    step: Curve
    token: float = 0.0
    drafts: float = 0.0
    start: float = 0.0


def kernel_costs(checkpoint: Checkpoint, backend: Backend, notes: MeasuredOnce) -> Costs:
    """As noted, or measured now, which takes some seconds."""
    overhead = notes.numbers("token", len(Overhead._fields), token_overhead)  # first: see there
    found: dict[tuple[str, str], tuple[LayerCosts, float, Curve]] = {}
    layers = []
    for number in range(checkpoint.config.layer_count):
        keys = _keys(checkpoint, number)
        if keys not in found:
            found[keys] = _measure(checkpoint, number, backend, keys, notes)
        layer, head, step = found[keys]
        layers.append(layer)
    return Costs(tuple(layers), head * checkpoint.config.vocab_size, step, *overhead)


def _measure(
    checkpoint: Checkpoint, number: int, backend: Backend, keys: tuple[str, str], notes: MeasuredOnce
) -> tuple[LayerCosts, float, Curve]:
    """A layer, a token of the vocabulary in a row of logits, and a step besides."""
    built: list[ImaginedLayers] = []

    def layers() -> ImaginedLayers:
        if not built:
            built.append(ImaginedLayers(checkpoint, number, backend))
        return built[0]

    def rest() -> list[float]:
        timings = [layers().rest(rows, NEAR) for rows in ROWS]
        seconds = [each.layer for each in timings]
        quick = seconds[-1] < QUICK
        seconds.append(layers().rest(LONG, NEAR).layer if quick else Curve(ROWS, tuple(seconds)).at(LONG))
        far = layers().rest(1, FAR)
        deeper = max(0.0, far.layer - timings[0].layer) / (FAR - NEAR)
        head = timings[0].head / layers().config.vocab_size
        return [*seconds, *(each.step for each in timings), deeper, head]

    def experts() -> list[float]:
        pairs = [layers().experts(rows) for rows in EXPERT_ROWS]
        handing = [layers().mapped(), layers().described()]
        return [*(shared for shared, _ in pairs), *(routed for _, routed in pairs), *handing]

    few, more = len(ROWS), len(EXPERT_ROWS)
    rests = notes.numbers(keys[0], 2 * few + 3, rest, rounds=ROUNDS)
    expert = notes.numbers(keys[1], 2 * more + 2, experts, rounds=ROUNDS)
    layer = LayerCosts(
        Curve((*ROWS, LONG), tuple(rests[: few + 1])),
        rests[-2],
        Curve(EXPERT_ROWS, tuple(expert[:more])),
        Curve(EXPERT_ROWS, tuple(expert[more : 2 * more])),
        *expert[2 * more :],
    )
    return layer, rests[-1], Curve(ROWS, tuple(rests[few + 1 : 2 * few + 1]))


def fingerprint(backend: Backend) -> str:
    """The machine, as far as speed depends on it: processor, number of threads, memory, instruction set, library."""
    cpu, library = read_cpu(), find().stat()
    memory = round(read_memory().total / (1 << 30))
    threads = getattr(backend, "threads", 0)
    version = f"{library.st_size} {library.st_mtime_ns}"
    return _digest(backend.name, cpu, threads, memory, instruction_set(), version)


def _keys(checkpoint: Checkpoint, number: int) -> tuple[str, str]:
    """What a layer's times depend on: shapes and types, without its experts, and of these alone."""
    like = imagined_like(checkpoint, number, 1)
    config = like.config
    parts: tuple[list[str], list[str]] = ([], [])
    for name, info in like.index.items():
        parts["_exps." in name or "_shexp." in name].append(f"{name} {info.kind.name} {info.shape}")
    depth = min(checkpoint.config.layer_count, 64)  # of a small model, which the caches hold as a whole
    small = (config.window, config.index_topk, config.heads, config.o_groups, config.layers, depth)
    return _digest(ROWS, LONG, *small, parts[0]), _digest(EXPERT_ROWS, config.experts_used, depth, parts[1])


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

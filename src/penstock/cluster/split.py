"""Which layers run where: as it was said, or by memory and speed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock.errors import ClusterError, OptionError
from penstock.storage.dense import HEAD
from penstock.weights.checkpoint import Checkpoint

Layers = tuple[range, ...]  # of one machine: stretches of the model, between which others have theirs


def parse_layers(text: str, name: str = "layers") -> Layers | None:
    """ "21:43" → (range(21, 43),); "0:10,20:30" → (range(10), range(20, 30)); "auto" → None"""
    if text == "auto":
        return None
    found, at = [], 0
    for each in text.split(","):
        first, colon, last = each.partition(":")
        if not (colon and first.isdecimal() and last.isdecimal() and at <= int(first) < int(last)):
            raise OptionError(f"{name} is {text!r}, expected auto, or two numbers such as 21:43")
        at = int(last)
        found.append(range(int(first), at))
    return tuple(found)


def said_layers(layers: Layers) -> str:
    """As `parse_layers` reads them.

    >>> said_layers((range(10), range(20, 30)))
    '0:10,20:30'
    """
    return ",".join(f"{each.start}:{each.stop}" for each in layers)


@dataclass(frozen=True)
class Machine:
    """What a split goes by."""

    name: str
    layers: Layers | None = None  # which it is to run; None: any
    memory: int = 1 << 62  # bytes
    layer_seconds: float = 0.0  # 0: unknown


def layer_bytes(checkpoint: Checkpoint) -> list[int]:
    """Of each layer's weights."""
    found = [0] * checkpoint.config.layer_count
    for name, info in checkpoint.index.items():
        if name.startswith("blk."):
            found[int(name.split(".")[1])] += info.total_bytes
    return found


def model_head_layers(checkpoint: Checkpoint) -> float:
    """How many layers the head of the model is worth: by the bytes that a token reads, which take the time."""
    return checkpoint.index[HEAD].total_bytes * checkpoint.config.layer_count / token_bytes(checkpoint)


def token_bytes(checkpoint: Checkpoint) -> float:
    """That a token reads of the layers."""
    config, read = checkpoint.config, 0.0
    for name, info in checkpoint.index.items():
        if name.startswith("blk."):
            read += info.total_bytes * (config.experts_used / config.experts if "_exps." in name else 1)
    return read


def split(
    machines: Sequence[Machine], layer_bytes: Sequence[int], head_layers: float = 0.0
) -> list[tuple[int, Layers]]:
    """Which machine, by number, runs which layers, in their order.  The first machine is the head, and first.
    head_layers: how many layers the last machine has to do besides, with the head of the model.

    Where the head has several stretches of layers, so have all: after each of the head's comes one of every other
    machine, always in the same order.

    Raises ClusterError if the layers that were said do not make up the model.
    """
    end, own = len(layer_bytes), machines[0].layers or (range(0),)
    if len(own) * len(machines) > end:
        turns = f" that take {len(own)} turns" if len(own) > 1 else ""
        raise ClusterError(f"{len(machines)} stages{turns}, but the model has {end} layers")
    for machine in machines:
        if len(machine.layers or own) != len(own):
            raise ClusterError(
                _not_tiled(machines, end, f"{machine.name} needs as many stretches as the head")
            )
    found: dict[int, Layers] = {}
    for turn, (at, stop) in enumerate(pairwise([0, *(each.start for each in own[1:]), end])):
        said = [None if machine.layers is None else machine.layers[turn] for machine in machines]
        shared = [replace(machine, memory=machine.memory // len(own)) for machine in machines]
        try:
            tiles = _split_turn(
                shared, said, layer_bytes, range(at, stop), head_layers if stop == end else 0.0
            )
        except ClusterError as error:
            raise ClusterError(_not_tiled(machines, end, str(error))) from None
        if found and list(found) != [number for number, _ in tiles]:
            raise ClusterError(_not_tiled(machines, end, "machines take turns in another order"))
        for number, layers in tiles:
            found[number] = (*found.get(number, ()), layers)
    return list(found.items())


def _split_turn(
    machines: Sequence[Machine],
    said: Sequence[range | None],
    layer_bytes: Sequence[int],
    turn: range,
    head_layers: float,
) -> list[tuple[int, range]]:
    """Of the layers of one turn."""
    starts = sorted((layers.start, n) for n, layers in enumerate(said) if layers is not None)
    free = [n for n, layers in enumerate(said) if layers is None]
    found: list[tuple[int, range]] = []
    at, end = turn.start, turn.stop
    for start, number in [*starts, (end, -1)]:
        if start < at:
            raise ClusterError(f"layers {start}:{at} twice")
        if start > at:
            # As many of the free ones as this gap takes, if several gaps are left.
            gaps = _gaps(said, at, end)
            mine, free = (free, []) if gaps == 1 else (free[:1], free[1:])
            if not mine or len(mine) > start - at:
                raise ClusterError(f"layers {at}:{start} nowhere")
            besides = head_layers if start == end else 0.0
            counts = _shares([machines[n] for n in mine], layer_bytes[at:start], besides)
            for which, count in zip(mine, counts, strict=True):
                found.append((which, range(at, at + count)))
                at += count
        if number >= 0:
            layers = said[number]
            assert layers is not None
            if layers.stop > end:
                raise ClusterError(f"layers up to {layers.stop}")
            found.append((number, layers))
            at = layers.stop
    if free:
        raise ClusterError(f"no layers for {machines[free[0]].name}")
    if found[0][0] != 0:
        raise ClusterError("the head without the first ones")
    return found


def _gaps(layers: Sequence[range | None], at: int, end: int) -> int:
    """Stretches from `at` on that nobody has said."""
    said = sorted((each.start, each.stop) for each in layers if each is not None)
    count = 0
    for start, stop in [*((s, e) for s, e in said if s >= at), (end, end)]:
        count += start > at
        at = stop
    return count


def _not_tiled(machines: Sequence[Machine], end: int, what: str) -> str:
    said = ", ".join(f"{m.name} {'auto' if m.layers is None else said_layers(m.layers)}" for m in machines)
    return f"layers: {said} do not make up 0:{end}: {what}"


def _shares(machines: Sequence[Machine], layer_bytes: Sequence[int], besides: float) -> list[int]:
    """How many layers each takes: one after another to who would be done with it first and has room for it.  besides:
    what the last one has to do anyway, in layers."""
    known = [m.layer_seconds for m in machines if m.layer_seconds > 0]
    usual = sum(known) / len(known) if known else 1.0
    seconds = [m.layer_seconds or usual for m in machines]
    each = sum(layer_bytes) / len(layer_bytes)
    counts = [1] * len(machines)
    more = [0.0] * (len(machines) - 1) + [besides]
    for _ in range(len(layer_bytes) - len(machines)):
        open_ = [n for n, m in enumerate(machines) if (counts[n] + 1) * each <= m.memory]
        if open_:
            taker = min(open_, key=lambda n: ((counts[n] + 1 + more[n]) * seconds[n], n))
        else:  # all stream from disk: by memory
            taker = min(range(len(machines)), key=lambda n: ((counts[n] + 1) / max(1, machines[n].memory), n))
        counts[taker] += 1
    return counts

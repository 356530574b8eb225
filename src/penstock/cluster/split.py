"""Which layers run where: as it was said, or by memory and speed."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ClusterError, OptionError
from penstock.storage.dense import HEAD
from penstock.weights.checkpoint import Checkpoint


def parse_layers(text: str, name: str = "layers") -> range | None:
    """ "21:43" → range(21, 43); "auto" → None"""
    if text == "auto":
        return None
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise OptionError(f"{name} is {text!r}, expected auto, or two numbers such as 21:43")
    return range(int(first), int(last))


@dataclass(frozen=True)
class Machine:
    """What a split goes by."""

    name: str
    layers: range | None = None  # which it is to run; None: any
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
) -> list[tuple[int, range]]:
    """Which machine, by number, runs which layers, in their order.  The first machine is the head, and first.
    head_layers: how many layers the last machine has to do besides, with the head of the model.

    Raises ClusterError if the layers that were said do not make up the model.
    """
    if len(machines) > len(layer_bytes):
        raise ClusterError(f"{len(machines)} stages, but the model has {len(layer_bytes)} layers")
    said = sorted((m.layers.start, n) for n, m in enumerate(machines) if m.layers is not None)
    free = [n for n, machine in enumerate(machines) if machine.layers is None]
    found: list[tuple[int, range]] = []
    at, end = 0, len(layer_bytes)
    for start, number in [*said, (end, -1)]:
        if start < at:
            raise ClusterError(_not_tiled(machines, end, f"layers {start}:{at} twice"))
        if start > at:
            # As many of the free ones as this gap takes, if several gaps are left.
            gaps = _gaps(machines, at, end)
            mine, free = (free, []) if gaps == 1 else (free[:1], free[1:])
            if not mine or len(mine) > start - at:
                raise ClusterError(_not_tiled(machines, end, f"layers {at}:{start} nowhere"))
            besides = head_layers if start == end else 0.0
            counts = _shares([machines[n] for n in mine], layer_bytes[at:start], besides)
            for which, count in zip(mine, counts, strict=True):
                found.append((which, range(at, at + count)))
                at += count
        if number >= 0:
            layers = machines[number].layers
            assert layers is not None
            if layers.stop > end:
                raise ClusterError(_not_tiled(machines, end, f"layers up to {layers.stop}"))
            found.append((number, layers))
            at = layers.stop
    if free:
        raise ClusterError(_not_tiled(machines, end, f"no layers for {machines[free[0]].name}"))
    if found[0][0] != 0:
        raise ClusterError(_not_tiled(machines, end, "the head without the first ones"))
    return found


def _gaps(machines: Sequence[Machine], at: int, end: int) -> int:
    """Stretches from `at` on that nobody has said."""
    said = sorted((m.layers.start, m.layers.stop) for m in machines if m.layers is not None)
    count = 0
    for start, stop in [*((s, e) for s, e in said if s >= at), (end, end)]:
        count += start > at
        at = stop
    return count


def _not_tiled(machines: Sequence[Machine], end: int, what: str) -> str:
    said = ", ".join(
        f"{m.name} {'auto' if m.layers is None else f'{m.layers.start}:{m.layers.stop}'}" for m in machines
    )
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

"""What a worker says of itself, what the head demands of it, and whether the two fit."""

import socket
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

import penstock
from penstock.cluster.message import take
from penstock.cluster.split import Layers, parse_layers, said_layers
from penstock.errors import ClusterError, OptionError
from penstock.model import architecture
from penstock.weights.checkpoint import Checkpoint

PROTOCOL: Final = 5  # changes when machines with the old one and the new one could not work together


@dataclass(frozen=True)
class Described:
    """A model, as far as both sides must have the same."""

    fingerprint: str
    layers: int
    boundary: list[int]  # shape of what crosses, by row
    vocabulary: int
    types: str  # of weights, those with most bytes first

    @staticmethod
    def of(checkpoint: Checkpoint) -> "Described":
        sizes: Counter[str] = Counter()
        for info in checkpoint.index.values():
            sizes[info.kind.name] += info.total_bytes
        config = checkpoint.config
        shape = list(architecture(config).boundary(config))
        types = ", ".join(name for name, _ in sizes.most_common())
        return Described(checkpoint.fingerprint(), config.layer_count, shape, config.vocab_size, types)


@dataclass(frozen=True)
class Hello:
    """What a worker says first."""

    protocol: int
    version: str
    name: str  # of the machine
    model: dict[str, Any]  # a `Described`
    draft: bool  # whether it has the draft block
    layers: Layers | None  # which it is to run; None: as the head finds best
    loaded: Layers | None  # which it has in memory from before
    memory: int  # bytes that it may take
    layer_seconds: float  # of one token in one layer, measured; 0 if it was not
    share: (
        float | None
    )  # of the routed experts, to compute them alone; 0: as memory allows; None: it runs layers

    @staticmethod
    def read(fields: dict[str, Any]) -> "Hello":
        # The protocol first: the rest may have changed with it.
        (protocol,) = take(fields, protocol=int)
        if protocol != PROTOCOL:
            version, name = (str(fields.get(key))[:40] for key in ("version", "name"))
            raise ClusterError(
                f"worker {name} has protocol {protocol} (penstock {version}), "
                f"the head has {PROTOCOL} (penstock {penstock.__version__})"
            )
        names = {
            "version": str,
            "name": str,
            "model": dict,
            "draft": bool,
            "memory": int,
            "layer_seconds": float,
        }
        version, name, model, draft, memory, seconds = take(fields, **names)
        layers, loaded = (read_layers(fields, key) for key in ("layers", "loaded"))
        share = fields.get("share")
        if share is not None and not (type(share) is float and 0 <= share <= 1):
            raise ClusterError(f"a message has share {share!r:.40}, expected a number from 0 to 1")
        return Hello(protocol, version, name, model, draft, layers, loaded, memory, seconds, share)


def hello(
    checkpoint: Checkpoint,
    described: Described,
    layers: Layers | None,
    loaded: Layers | None,
    memory: int,
    seconds: float,
    share: float | None = None,
) -> dict[str, Any]:
    """As a message has it."""
    found = Hello(
        PROTOCOL,
        penstock.__version__,
        socket.gethostname(),
        asdict(described),
        checkpoint.has_draft,
        layers,
        loaded,
        memory,
        seconds,
        share,
    )
    return asdict(found) | {"layers": _told(layers), "loaded": _told(loaded)}


def _told(layers: Layers | None) -> str:
    return "auto" if layers is None else said_layers(layers)


def read_layers(said: dict[str, Any], name: str) -> Layers | None:
    """As a message has them."""
    (text,) = take(said, **{name: str})
    try:
        return parse_layers(text, name)
    except OptionError as error:
        raise ClusterError(f"a message says: {error}") from None


def check(own: Described, draft: bool, said: Hello) -> None:
    """Raises ClusterError, saying which side has what, if the worker cannot run this model with the head."""
    words = {
        "layers": "layers",
        "boundary": "streams and width",
        "vocabulary": "tokens in the vocabulary",
        "types": "weights of type",
        "fingerprint": "the model with fingerprint",
    }
    for name, word in words.items():
        here, there = getattr(own, name), said.model.get(name)
        if here != there:
            raise ClusterError(
                f"worker {said.name} has another model: {word} {str(there)[:80]} there, {here} on the head"
            )
    if draft and not said.draft:
        raise ClusterError(
            f"worker {said.name} has no draft block, the head has one; draft 'off' leaves it out"
        )


@dataclass(frozen=True)
class Terms:
    """What every stage of a running cluster goes by: the head says it."""

    context: int
    max_rewind: int
    kv_dtype: str
    simulate_low_precision: bool
    exact: bool
    draft: bool
    chunk: int
    sessions: int
    boundary: str  # "bf16" or "f32"
    timeout: float

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def read(fields: dict[str, Any]) -> "Terms":
        kinds = {
            "context": int,
            "max_rewind": int,
            "kv_dtype": str,
            "simulate_low_precision": bool,
            "exact": bool,
            "draft": bool,
        }
        kinds |= {"chunk": int, "sessions": int, "boundary": str, "timeout": float}
        return Terms(*take(fields, **kinds))

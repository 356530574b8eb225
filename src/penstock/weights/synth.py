"""Synthetic models: valid random weights of any width and quantisation, streamed to disk as fast as it writes.

Made for tests and benchmarks.  Everything that loads a DeepSeek-V4 GGUF loads these too.  Activations stay near
1 at any depth and logits have a standard deviation of about 3, so numerical errors show up as in a real model;
every tensor matters, so one that is ignored shows up too.

    >>> synth(Path("tiny.gguf"), mix="q4").bytes                      # doctest: +SKIP
    16686912
    >>> plan_synth(width="flash").data_bytes                          # doctest: +SKIP
    86714775900

A file depends on its options and on nothing else: each piece of each tensor has its own stream of random bits,
named by seed, tensor and piece.
"""

import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.random import SFC64, Generator, SeedSequence
from numpy.typing import NDArray

from penstock.errors import OptionError
from penstock.tokenizer import MIN_BYTE_VOCABULARY, byte_tokenizer_metadata
from penstock.weights.config import MAX_DIMENSION, ModelConfig
from penstock.weights.config_gguf import ARCHITECTURE, RATIO_KINDS, config_to_gguf
from penstock.weights.gguf_writer import PlannedTensor, write_gguf
from penstock.weights.layout import Role, TensorPlan, dspark_tensors, layer_tensors, root_tensors
from penstock.weights.mixes import EXPERTS, Mix, Types
from penstock.weights.mixes import MIXES as CONVERTED
from penstock.weights.popularity import hash_rows, router_bias
from penstock.weights.random_blocks import random_blocks
from penstock.weights.types import F16, Q8_0, WeightType
from penstock.weights.widths import WIDTHS, Width

Bytes = NDArray[np.uint8]

MAX_SYNTH_LAYERS: Final = 512  # llama.cpp's limit
MAX_SKEW: Final = 8.0  # beyond it the same experts are chosen every time
MAX_SEED: Final = (1 << 64) - 1

PIECE_BYTES: Final = 2 << 20  # generated at a time: the passes over it stay in the L2 cache
TABLE_ROWS: Final = 4096  # tokens of a hash table generated at a time
THREADS: Final = min(8, os.cpu_count() or 1)  # generating; a few fill memory faster than a disk writes
AHEAD: Final = 8  # pieces waiting for the writer

DSPARK_FEATURES: Final = 3  # layers that a DSpark module looks at
DSPARK_RANK: Final = 256  # of its Markov head
HEAD_GAIN: Final = 3.0  # standard deviation of the logits
BYTES_PER_TOKEN: Final = 64  # generous room for a vocabulary entry and its part of the header


# ── mixes ─────────────────────────────────────────────────────────────────────────────────────────────────


# Those of `penstock quantize`, and two for benchmarks: Q8_0 in the layout of ds4, and everything in F16.
MIXES: Final[dict[str, Types]] = {
    **{name: CONVERTED[name].types for name in ("q2", "q4", "mxfp4")},
    "q8_0": {**CONVERTED["q4"].types, **dict.fromkeys(EXPERTS, Q8_0)},
    "f16": dict.fromkeys(Role, F16),
}


def stored_type(plan: TensorPlan, mix: str) -> WeightType:
    """The type a mix gives to a tensor."""
    return Mix(mix, MIXES[mix]).target(plan, 0)


# ── plan ──────────────────────────────────────────────────────────────────────────────────────────────────


class SynthTensor(NamedTuple):
    plan: TensorPlan
    kind: WeightType

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.plan.shape)


@dataclass(frozen=True)
class SynthPlan:
    """A model about to be made: which tensors, of which types, and how their values are drawn."""

    name: str
    config: ModelConfig
    mix: str
    skew: float = 0.0
    seed: int = 0
    notes: tuple[str, ...] = ()  # what was chosen differently from what one might expect
    dspark: int = 0  # stages of a DSpark module

    @cached_property
    def tensors(self) -> tuple[SynthTensor, ...]:
        plans = list(root_tensors(self.config))
        for number, layer in enumerate(self.config.layers):
            plans.extend(layer_tensors(self.config, layer, f"blk.{number}", layer.expert_width))
        layer = self.config.mtp_layer
        for stage in range(self.dspark):
            plans.extend(layer_tensors(self.config, layer, f"mtp.{stage}", layer.expert_width))
        if self.dspark:
            plans.extend(dspark_tensors(self.config, self.dspark, DSPARK_FEATURES, DSPARK_RANK))
        return tuple(SynthTensor(plan, stored_type(plan, self.mix)) for plan in plans)

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors, without header and padding."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one routed expert of the last layer."""
        prefix = f"blk.{self.config.layer_count - 1}."
        routed = [t for t in self.tensors if t.plan.role is Role.ROUTED and t.plan.name.startswith(prefix)]
        return sum(tensor.nbytes for tensor in routed) // self.config.experts

    def ranks(self, layer: int) -> NDArray[np.int64]:
        """Popularity rank of each expert of a layer, 0 = most popular; a different order in every layer."""
        return _stream(self.seed, f"blk.{layer}.popularity", 0).permutation(self.config.experts)

    def metadata(self) -> dict[str, Any]:
        general = {"general.architecture": ARCHITECTURE, "general.name": self.name}
        return general | config_to_gguf(self.config) | byte_tokenizer_metadata(self.config.vocab_size)


def plan_synth(
    *,
    width: str = "tiny",
    layers: int | None = None,
    mix: str = "q2",
    vocab: int | None = None,
    skew: float = 0.0,
    seed: int = 0,
    ratios: Sequence[int] | None = None,
    hash_layers: int | None = None,
    dspark: int = 0,
) -> SynthPlan:
    """What :func:`synth` would write for these options; raises OptionError for a value that cannot be."""
    _need(width in WIDTHS, "width", width, f"one of {', '.join(WIDTHS)}")
    _need(mix in MIXES, "mix", mix, f"one of {', '.join(MIXES)}")
    _need(0 <= skew <= MAX_SKEW, "skew", skew, f"0 to {MAX_SKEW:g}")
    _need(0 <= seed <= MAX_SEED, "seed", seed, f"0 to {MAX_SEED}")
    form = WIDTHS[width]
    vocab = form.base.vocab_size if vocab is None else vocab
    _need(
        MIN_BYTE_VOCABULARY <= vocab <= MAX_DIMENSION,
        "vocab",
        vocab,
        f"{MIN_BYTE_VOCABULARY} (the bytes and markers of the tokenizer) to {MAX_DIMENSION:,}",
    )
    schedule, notes = _schedule(form, layers, ratios)
    hashed = min(form.hash_layers, len(schedule)) if hash_layers is None else hash_layers
    _need(0 <= hashed <= len(schedule), "hash-layers", hashed, f"0 to the number of layers, {len(schedule)}")
    config = form.config(schedule, hashed, vocab)
    config.validate(f"synthetic {width}")
    name = f"synthetic {width} {mix} {len(schedule)}L seed {seed}" + (f" skew {skew:g}" if skew else "")
    return SynthPlan(name, config, mix, float(skew), seed, notes, dspark)


def _need(condition: bool, flag: str, value: object, expected: str) -> None:
    if not condition:
        raise OptionError(f"--{flag} is {value!r}, expected {expected}")


def _schedule(
    form: Width, layers: int | None, ratios: Sequence[int] | None
) -> tuple[list[int], tuple[str, ...]]:
    """Compression ratio of every layer, and what to tell about it."""
    count = layers if layers is not None else form.layers if ratios is None else len(ratios)
    flag = "ratios" if layers is None and ratios is not None else "layers"
    _need(1 <= count <= MAX_SYNTH_LAYERS, flag, count, f"1 to {MAX_SYNTH_LAYERS} layers")
    if ratios is not None:
        _need(len(ratios) == count, "ratios", list(ratios), f"one ratio for each of {count} layers")
        _need(all(r in RATIO_KINDS for r in ratios), "ratios", list(ratios), "only 0, 4 and 128")
        notes = () if 4 in ratios else ("no layer has ratio 4: llama.cpp cannot run this model",)
        return list(ratios), notes
    schedule = form.ratios(count)
    if 4 in schedule:
        return schedule, ()
    note = f"layer {count - 1} has ratio 4 instead of {schedule[-1]}: llama.cpp needs one such layer"
    return [*schedule[:-1], 4], (note,)


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────


def _stream(seed: int, name: str, piece: int) -> Generator:
    """The random bits of one piece of one tensor, independent of all others."""
    word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    return Generator(SFC64(SeedSequence([seed, word, piece])))


class _Pieces(NamedTuple):
    """A tensor as `total` pieces that can be made in any order, on any thread."""

    total: int
    make: Callable[[int], Bytes]


def _pieces(model: SynthPlan, tensor: SynthTensor) -> _Pieces:
    if tensor.plan.role is Role.HASH_TABLE:
        return _table_pieces(model, tensor.plan)
    if len(tensor.plan.shape) == 1:
        return _Pieces(1, lambda _: _vector(model, tensor.plan).astype("<f4").view(np.uint8))
    return _matrix_pieces(model, tensor)


def _matrix_pieces(model: SynthPlan, tensor: SynthTensor) -> _Pieces:
    plan, kind = tensor
    maker = random_blocks(kind, _matrix_std(plan))
    blocks, step = tensor.nbytes // kind.block_bytes, PIECE_BYTES // kind.block_bytes

    def make(piece: int) -> Bytes:
        return maker(_stream(model.seed, plan.name, piece), min(step, blocks - piece * step))

    return _Pieces(-(-blocks // step), make)


def _matrix_std(plan: TensorPlan) -> float:
    """Projections keep the variance of what they are given, so activations stay near 1 at any depth."""
    if plan.role is Role.EMBEDDING:
        return 1.0
    if plan.name.endswith("_ape.weight"):
        return 0.5
    gain = HEAD_GAIN if plan.role is Role.HEAD else 1.0
    return float(gain / plan.shape[-1] ** 0.5)


def _vector(model: SynthPlan, plan: TensorPlan) -> NDArray[Any]:
    rng, (size,) = _stream(model.seed, plan.name, 0), plan.shape
    leaf = plan.leaf
    if leaf == "exp_probs_b.bias":
        return router_bias(model.ranks(_layer(plan)), model.config.experts_used, model.skew, rng)
    if leaf == "attn_sinks":
        return 1.0 + rng.standard_normal(size)
    if leaf.endswith("_scale"):
        return 0.3 * rng.uniform(0.8, 1.2, size)  # weak: a token moves the mixing but does not decide it
    if leaf.endswith("_base"):
        return _mixing_base(size, model.config.streams, rng)
    assert leaf.endswith("norm"), leaf
    return rng.uniform(0.9, 1.1, size)


def _mixing_base(size: int, streams: int, rng: Generator) -> NDArray[Any]:
    """A layer's base holds pre, post and the streams × streams matrix; the output's only pre."""
    base = 0.5 * rng.standard_normal(size)
    if size > streams:
        # Streams mostly keep to themselves; mixed evenly they would all be the same after a few layers.
        base[2 * streams :: streams + 1] += 2.0
    return base


def _table_pieces(model: SynthPlan, plan: TensorPlan) -> _Pieces:
    rows, used = plan.shape
    ranks = model.ranks(_layer(plan))

    def make(piece: int) -> Bytes:
        rng, count = _stream(model.seed, plan.name, piece), min(TABLE_ROWS, rows - piece * TABLE_ROWS)
        ids = hash_rows(ranks, used, model.skew, count, rng)
        return ids.astype("<i4").reshape(-1).view(np.uint8)

    return _Pieces(-(-rows // TABLE_ROWS), make)


def _layer(plan: TensorPlan) -> int:
    return int(plan.name.split(".")[1])


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


class SynthReport(NamedTuple):
    path: Path
    bytes: int
    tensors: int
    seconds: float
    notes: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Bytes per second, from the first random bit to the last byte on disk."""
        return self.bytes / max(self.seconds, 1e-9)


def synth(
    destination: str | Path,
    *,
    width: str = "tiny",
    layers: int | None = None,
    mix: str = "q2",
    vocab: int | None = None,
    skew: float = 0.0,
    seed: int = 0,
    ratios: Sequence[int] | None = None,
    hash_layers: int | None = None,
    dspark: int = 0,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SynthReport:
    """Writes a random model.  `progress` is called with the number of tensor bytes just written.

    width        "flash" and "pro": the published sizes; "tiny": a few megabytes, with every path of the model
    layers       the first so many layers of the width's schedule; all of them if not given
    mix          "q2", "q4", "mxfp4", "q8_0" or "f16": how matrices are stored
    skew         exponent of Zipf's law for how often experts are chosen; 0 chooses all alike
    ratios       compression ratio of every layer (0, 4 or 128) instead of the width's schedule
    hash_layers  how many of the first layers look experts up by token id
    dspark       stages of a DSpark draft module, which published models have three of
    """
    plan = plan_synth(
        width=width,
        layers=layers,
        mix=mix,
        vocab=vocab,
        skew=skew,
        seed=seed,
        ratios=ratios,
        hash_layers=hash_layers,
        dspark=dspark,
    )
    return write_synth(plan, destination, overwrite=overwrite, progress=progress)


def write_synth(
    plan: SynthPlan,
    destination: str | Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SynthReport:
    """Writes a planned model; nothing is touched if it cannot fit or would replace a file unasked."""
    path = Path(destination)
    _check_destination(plan, path, overwrite)
    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="synth") as pool:
        tensors = [
            PlannedTensor(t.plan.name, t.kind, t.plan.shape, partial(_in_order, pool, _pieces(plan, t)))
            for t in plan.tensors
        ]
        write_gguf(path, plan.metadata(), tensors, progress or (lambda _: None))
    seconds = time.perf_counter() - started
    return SynthReport(path, path.stat().st_size, len(tensors), seconds, plan.notes)


def _in_order(pool: ThreadPoolExecutor, pieces: _Pieces) -> Iterator[Bytes]:
    """The pieces one after another, the next few already in the making."""
    waiting: deque[Future[Bytes]] = deque()
    try:
        for piece in range(pieces.total):
            waiting.append(pool.submit(pieces.make, piece))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _check_destination(plan: SynthPlan, path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise OptionError(f"{path}: expected the name of a file to write, found a folder")
    if path.exists() and not overwrite:
        raise OptionError(f"{path}: the file exists already; --force replaces it")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: the folder {path.parent} does not exist")
    # A file that is being replaced stays until the new one is complete, so its space does not count.
    needed = plan.data_bytes + BYTES_PER_TOKEN * plan.config.vocab_size
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise OptionError(f"{path}: the model needs {needed:,} bytes, the disk has {free:,} free")

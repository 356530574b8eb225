"""Specs with random weights, and sequences that an attention op is fed with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from penstock.backend import deepseek_v4 as v4
from penstock.backend.state import Series, StateLayout, Step
from tests.backend.helpers import KV_DTYPES, Device, Weights, array, random, vector

EPS = 1e-6
KINDS = ("sliding", "heavy", "sparse")


@dataclass(frozen=True)
class Sizes:
    hidden: int = 48
    streams: int = 4
    rank: int = 24
    heads: int = 6
    dim: int = 40
    half: int = 5
    index_heads: int = 5
    index_dim: int = 16
    window: int = 7
    ratio: int = 4
    topk: int = 3
    groups: int = 3
    middle: int = 8  # of a group
    experts: int = 11


USUAL = Sizes()
ODD = Sizes(hidden=37, streams=3, rank=13, heads=3, dim=17, half=2, index_heads=7, index_dim=9, groups=1)
# Enough work for several threads.
LARGE = Sizes(
    hidden=512, rank=256, heads=16, dim=128, half=16, index_dim=64, window=48, topk=12, experts=64, groups=4
)
# Every input is a whole number of the widest blocks.
BLOCKS = Sizes(
    hidden=256,
    streams=2,
    rank=256,
    heads=4,
    dim=128,
    half=16,
    index_heads=4,
    index_dim=32,
    groups=2,
    middle=128,
)


def hyper(weights: Weights, s: Sizes) -> v4.HyperSpec:
    n = s.streams
    return v4.HyperSpec(
        fn=weights.make((2 + n) * n, n * s.hidden),
        base=vector((2 + n) * n, seed=1),
        scale=vector(3, seed=2),
        norm=vector(s.hidden, seed=3),
        streams=n,
        iterations=20,
        eps=EPS,
        rms_eps=EPS,
    )


def router(weights: Weights, s: Sizes, hashed: bool = False) -> v4.RouterSpec:
    rng = np.random.default_rng(0)
    table = np.stack([rng.permutation(s.experts)[:4] for _ in range(50)])
    return v4.RouterSpec(
        gate=weights.make(s.experts, s.hidden),
        bias=None if hashed else vector(s.experts, seed=9),
        table=table if hashed else None,
        count=4,
        normalize=True,
        scale=1.5,
    )


def head(weights: Weights, s: Sizes, vocab: int = 50) -> v4.HeadSpec:
    n = s.streams
    return v4.HeadSpec(
        fn=weights.make(n, n * s.hidden),
        base=vector(n, seed=1),
        scale=vector(1, seed=2),
        norm=vector(s.hidden, seed=3),
        streams=n,
        vocab=vocab,
        eps=EPS,
        rms_eps=EPS,
    )


def join(weights: Weights, s: Sizes, fused: bool) -> v4.JoinSpec:
    columns = [2 * s.hidden] if fused else [s.hidden, s.hidden]
    return v4.JoinSpec(
        projections=tuple(weights.make(s.hidden, width) for width in columns),
        embedding_norm=vector(s.hidden, seed=4),
        stream_norm=vector(s.hidden, seed=5),
        streams=s.streams,
        hidden=s.hidden,
        eps=EPS,
    )


def attention(
    weights: Weights, s: Sizes, kind: str = "sparse", overlap: bool | None = None
) -> v4.AttentionSpec:
    """overlap: whether a compressor's windows do (None: as in the model, in sparse layers only)"""
    frequencies = torch.logspace(0, -2, s.half).numpy()
    if overlap is None:
        overlap = kind == "sparse"

    def compressor(dim: int, seed: int) -> v4.CompressorSpec:
        width = dim * (1 + overlap)
        return v4.CompressorSpec(
            values=weights.make(width, s.hidden),
            scores=weights.make(width, s.hidden),
            ape=vector(s.ratio, width, seed=seed),
            norm=vector(dim, seed=seed + 1),
            frequencies=frequencies,
        )

    indexer = None
    if kind == "sparse":
        indexer = v4.IndexerSpec(
            q_b=weights.make(s.index_heads * s.index_dim, s.rank),
            gates=weights.make(s.index_heads, s.hidden),
            compressor=compressor(s.index_dim, 10),
            heads=s.index_heads,
            dim=s.index_dim,
            topk=s.topk,
        )
    return v4.AttentionSpec(
        q_a=weights.make(s.rank, s.hidden),
        q_norm=vector(s.rank, seed=4),
        q_b=weights.make(s.heads * s.dim, s.rank),
        kv=weights.make(s.dim, s.hidden),
        kv_norm=vector(s.dim, seed=5),
        sinks=vector(s.heads, seed=8),
        out_a=weights.make(s.groups * s.middle, s.heads * s.dim // s.groups),
        out_b=weights.make(s.hidden, s.groups * s.middle),
        compressor=None if kind == "sliding" else compressor(s.dim, 6),
        indexer=indexer,
        heads=s.heads,
        dim=s.dim,
        window=s.window,
        groups=s.groups,
        frequencies=frequencies,
        eps=EPS,
    )


def layout_of(spec: v4.AttentionSpec, kv_dtype: str, context: int = 1024, max_rewind: int = 2) -> StateLayout:
    """What the sequences of one attention op keep, in the order of AttentionState's fields."""
    series = [Series("window", spec.dim, kv_dtype, reach=spec.window)]
    index = spec.indexer.compressor if spec.indexer else None
    for name, each in (("compressor", spec.compressor), ("indexer", index)):
        if each is not None:
            reach = each.ratio * (1 + each.overlap)
            series.append(Series(f"{name}.frontier", 2 * each.ape.shape[1], "f32", reach=reach))
            series.append(Series(f"{name}.rows", len(each.norm), kv_dtype, ratio=each.ratio))
    return StateLayout(tuple(series), context, max_rewind, kv_dtype, vocab_size=1)


class Block:
    """An attention op, and the sequences that are fed to it."""

    def __init__(
        self,
        spec: v4.AttentionSpec,
        kv_dtype: str = "f16",
        threads: int = 1,
        context: int = 1024,
        max_rewind: int = 2,
        low_precision: bool = False,
    ):
        self.layout = layout_of(spec, kv_dtype, context, max_rewind)
        self.device = Device(threads, self.layout, low_precision)
        self.pool = self.device.pool
        numbers = range(len(self.layout.series))
        self.op = self.device.ops.attention(spec, v4.AttentionState(*numbers))

    def sequence(self, x: Tensor) -> "Fed":
        return Fed(self, x)

    def run(self, work: Sequence[tuple["Fed", int]], keep: bool = True) -> list[Tensor]:
        """The next tokens of several sequences together → each one's results"""
        step = Step.of([(fed.slot, fed.position, [0] * count, 0) for fed, count in work])
        x = torch.cat([fed.x[fed.position : fed.position + count] for fed, count in work])
        batch = self.device.ops.begin(step, range(1))
        (out,) = self.device.out(self.op.run(array(x), batch))
        self.device.backend.check()
        for fed, count in work:
            if keep:
                fed.position += count
                self.pool.commit(fed.slot, fed.position)
            else:
                self.pool.discard(fed.slot)
        return list(out.split([count for _, count in work]))


class Fed:
    """One sequence: its inputs x [tokens, hidden], its slot, and where it stands."""

    def __init__(self, block: Block, x: Tensor):
        self.block, self.x, self.position = block, x, 0
        self.slot = block.pool.allocate()

    def feed(self, *counts: int) -> Tensor:
        return torch.cat([self.block.run([(self, count)])[0] for count in counts])

    def state(self) -> dict[str, Tensor]:
        """The rows that count for the future, as numbers."""
        found = self.block.pool.tensors(self.slot, self.position, self.position)
        kinds = {series.name: KV_DTYPES[series.dtype] for series in self.block.layout.series}
        return {
            name: torch.from_numpy(np.ascontiguousarray(rows)).view(kinds[name]).float()
            for name, rows in found.items()
        }


def pieces(total: int, cuts: Sequence[int]) -> list[int]:
    """Lengths between cuts."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < total}), total]
    return [b - a for a, b in pairwise(edges)]


def inputs(s: Sizes, total: int, seed: int = 0) -> Tensor:
    return random(total, s.hidden, seed=seed)

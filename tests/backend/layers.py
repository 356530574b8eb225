"""Layers with random weights, for tests of the larger ops."""

from dataclasses import dataclass
from pathlib import Path

import torch

from penstock.kernels import parts, reference
from penstock.kernels.parts import Rotation
from penstock.weights import types
from penstock.weights.tensor import Weight
from penstock.weights.types import WeightType
from tests.kernels.helpers import make_weight, random

EPS = 1e-6


@dataclass(frozen=True)
class Span:
    start: int
    stop: int
    position: int


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
    experts: int = 11


ODD = Sizes(hidden=37, streams=3, rank=13, heads=3, dim=17, half=2, index_heads=7, index_dim=9, groups=1)
LARGE = Sizes(
    hidden=512, rank=256, heads=16, dim=128, half=16, index_dim=64, window=48, topk=12, experts=64, groups=4
)


class Layer:
    """Parts of one layer, with random weights."""

    def __init__(self, folder: Path, s: Sizes, kind: WeightType = types.F16, overlap: bool = True):
        self.s, self.folder, self.kind, self.number = s, folder, kind, 0
        n = s.streams
        width = s.dim * (2 if overlap else 1)
        self.hyper = parts.Hyper(
            fn=self._weight((2 + n) * n, n * s.hidden),
            base=random((2 + n) * n, seed=1),
            scale=random(3, seed=2),
            norm=random(s.hidden, seed=3),
            streams=n,
            iterations=20,
            eps=EPS,
            rms_eps=EPS,
        )
        outs = (s.rank, s.dim, width, width, 2 * s.index_dim, 2 * s.index_dim, s.index_heads)
        self.inputs = parts.Projections(tuple(self._weight(out, s.hidden) for out in outs), 2, simulate=False)
        columns = self.inputs.columns
        self.queries = parts.Queries(
            column=columns[0],
            norm=random(s.rank, seed=4),
            q_b=self._weight(s.heads * s.dim, s.rank),
            heads=s.heads,
            dim=s.dim,
            index_q_b=self._weight(s.index_heads * s.index_dim, s.rank),
            index_heads=s.index_heads,
            index_dim=s.index_dim,
            eps=EPS,
            simulate=False,
        )
        self.keys = parts.Keys(columns[1], random(s.dim, seed=5), EPS, simulate=False)
        speed = torch.logspace(0, -2, s.half)
        self.compression = parts.Compression(
            value_column=columns[2],
            score_column=columns[3],
            ape=random(s.ratio, width, seed=6),
            norm=random(s.dim, seed=7),
            speed=speed,
            eps=EPS,
            index=False,
            simulate=False,
        )
        self.index_compression = parts.Compression(
            value_column=columns[4],
            score_column=columns[5],
            ape=random(s.ratio, 2 * s.index_dim, seed=10),
            norm=random(s.index_dim, seed=11),
            speed=speed,
            eps=EPS,
            index=True,
            simulate=False,
        )
        self.choice = parts.Choice(columns[6], s.ratio, s.topk)
        self.sight = parts.Sight(s.window, s.ratio, random(s.heads, seed=8))
        self.output = parts.Output(
            self._weight(s.groups * 8, s.heads * s.dim // s.groups),
            self._weight(s.hidden, s.groups * 8),
            s.groups,
            simulate=False,
        )
        gate = self._weight(s.experts, s.hidden)
        self.routing = parts.Routing(gate, random(s.experts, seed=9), None, 4, normalize=True, scale=1.5)
        table = torch.stack([torch.randperm(s.experts)[:4] for _ in range(50)])
        self.hashed = parts.Routing(gate, None, table, 4, normalize=True, scale=1.5)
        self.speed = speed

    def _weight(self, out: int, columns: int) -> Weight:
        self.number += 1
        return make_weight(self.folder / f"w{self.number}", self.kind, out, columns, seed=self.number)

    def attention(self, *, compressed: bool = True, indexed: bool = True) -> parts.Attention:
        """The whole sublayer, or one without indexer, or without compressors."""
        return parts.Attention(
            inputs=self.inputs,
            queries=self.queries,
            keys=self.keys,
            compression=self.compression if compressed else None,
            index_compression=self.index_compression if compressed and indexed else None,
            choice=self.choice if compressed and indexed else None,
            sight=self.sight,
            output=self.output,
        )

    def rotation(self, total: int) -> Rotation:
        return reference.angles(torch.arange(total), self.speed)

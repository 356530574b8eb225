"""Where a step begins and ends: embedding, head, and the way into a draft block."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DeviceWeight, Logits
from penstock.backend.cuda.deepseek_v4.attention import packed
from penstock.backend.cuda.deepseek_v4.batch import (
    BUCKETS,
    Batch,
    Launch,
    StepMemory,
    padded,
    pieces,
    run,
    smaller_pieces,
)
from penstock.backend.cuda.deepseek_v4.hyper import Mixer, Streams
from penstock.backend.cuda.deepseek_v4.long_steps import LongBatch, LongStreams
from penstock.backend.cuda.dense import Dense
from penstock.backend.cuda.device import translated
from penstock.backend.cuda.inputs import forms_of
from penstock.backend.cuda.launch import Recorded
from penstock.backend.cuda.placed import TABLE_KINDS, CudaWeight, vector
from penstock.backend.cuda.plain import Embed, StoredRows
from penstock.backend.cuda.prefill_products import HalfRows, make_halves, multiply
from penstock.backend.cuda.sample import DeviceLogits
from penstock.backend.cuda.weights import Packed


class Embedded:
    """x [rows, hidden], the embeddings of a step's tokens: written where they are wanted."""

    def __init__(self, table: StoredRows, tokens: torch.Tensor, room: Callable[[], torch.Tensor]):
        """room: for [rows, 1, hidden], where nobody says where"""
        self._table, self._tokens, self._room = table, tokens, room
        self.rows, self.hidden = len(tokens), table.columns

    def write(self, out: torch.Tensor) -> None:
        """out [rows, copies, hidden]"""
        Embed(self._table, self._tokens, out).launch()

    def tensor(self) -> torch.Tensor:
        out = self._room()
        self.write(out)
        return out[:, 0]


class CudaEmbedding(v4.Embedding):
    def __init__(self, weight: DeviceWeight, memory: StepMemory):
        assert isinstance(weight, CudaWeight)
        self._memory, self._table = memory, weight.stored(TABLE_KINDS)

    def run(self, batch: Batch) -> Embedded:
        rows, hidden = batch.rows, self._table.columns
        if isinstance(batch, LongBatch):
            return Embedded(self._table, batch.tokens, lambda: batch.memory.take("embedded", rows, 1, hidden))
        workspace, tokens = self._memory.workspace, self._memory.tokens[:rows]
        return Embedded(self._table, tokens, lambda: workspace.take("embedded", 1, hidden)[:rows])


class CudaHead(v4.Head):
    """Logits of all rows, straight from the last layer's output; or of some, which are gathered first, so that one
    graph serves every choice of them."""

    def __init__(self, spec: v4.HeadSpec, memory: StepMemory):
        assert isinstance(spec.fn, CudaWeight)
        self._vocab, self._memory, self._most = spec.vocab, memory, BUCKETS[-1]
        self._mixer = Mixer(
            spec.fn.stored(), spec.base, spec.scale, spec.norm, spec.streams, 0, spec.eps, spec.rms_eps, True,
            memory,
        )  # fmt: skip
        self._shape = (spec.streams, len(spec.norm))
        self._made: dict[int, tuple[int, list[Launch]]] = {}
        self._graphs: dict[tuple[int, ...], Recorded] = {}  # by the number of rows, and where they come from

    def run(
        self, streams: Streams | LongStreams, rows: NDArray[np.int64], output: Iterable[DeviceWeight]
    ) -> Logits:
        (weight,) = output
        with translated("logits"):
            matrix = packed(weight)
            if isinstance(streams, Streams) and self._takes_all(streams, rows):
                return DeviceLogits(self._all(streams, matrix)[: len(rows)]).for_the_engine()
            now, long = streams.settle(), isinstance(streams, LongStreams)

            def some(part: NDArray[np.int64]) -> torch.Tensor:
                found = self._of_long(now, part, matrix) if long else self._some(now, part, matrix)
                return found[: len(part)]

            if len(rows) <= self._most:
                return DeviceLogits(some(rows)).for_the_engine()
            found = np.empty((len(rows), self._vocab), np.float32)
            for first in range(0, len(rows), self._most):
                part = rows[first : first + self._most]
                found[first : first + len(part)] = some(part).cpu().numpy()
        return found

    def _takes_all(self, streams: Streams, rows: NDArray[np.int64]) -> bool:
        """As when every sequence has read a token."""
        if streams.pending is None or not self._mixer.fast or streams.rows > self._most:
            return False
        return padded(len(rows)) == streams.rows and bool((rows == np.arange(len(rows))).all())

    def _all(self, streams: Streams, matrix: Packed) -> torch.Tensor:
        assert streams.pending is not None
        at, count = streams.at, streams.rows
        key = (count, *(tensor.data_ptr() for tensor in (streams.now, *streams.pending)))
        if key not in self._graphs:
            self._graphs[key] = Recorded(lambda: self.logits_of(streams, matrix))
        self._graphs[key].run()
        streams.at, streams.pending = 1 - at, None  # also where the graph was only repeated
        return self._logits(count)

    def _of_long(self, streams: torch.Tensor, rows: NDArray[np.int64], matrix: Packed) -> torch.Tensor:
        """Rows of a long step are brought together first: its streams have no place of their own."""
        together = self._memory.workspace.once(
            ("rows of a long step",), lambda: torch.zeros(self._most, *self._shape, device="cuda")
        )
        torch.index_select(streams, 0, torch.from_numpy(rows).cuda(), out=together[: len(rows)])
        return self._some(together, np.arange(len(rows)), matrix)

    def _some(self, streams: torch.Tensor, rows: NDArray[np.int64], matrix: Packed) -> torch.Tensor:
        wanted = self._memory.want(rows)
        count = len(wanted)
        key = (count, len(streams), streams.data_ptr())
        if key not in self._graphs:
            self._graphs[key] = Recorded(lambda: self._launch(streams, wanted, matrix))
        self._graphs[key].run()
        return self._logits(count)

    def _logits(self, count: int) -> torch.Tensor:
        found: torch.Tensor = self._memory.workspace.once(
            ("logits",), lambda: torch.empty(self._most, self._vocab, device="cuda")
        )
        return found[:count]

    def _launch(self, streams: torch.Tensor, wanted: torch.Tensor, matrix: Packed) -> None:
        count, workspace = len(wanted), self._memory.workspace
        chosen = workspace.once(
            ("head streams", count), lambda: Streams(workspace, "head streams", count, *self._shape)
        )
        torch.index_select(streams, 0, wanted, out=chosen.begin())
        self.logits_of(chosen, matrix)

    def logits_of(self, streams: Streams, matrix: Packed) -> tuple[torch.Tensor, torch.Tensor]:
        """Launches all rows → their logits [rows, vocab], and a mix [rows, …] whose first numbers fold the streams"""
        count = streams.rows
        x, mix = self._mixer.enter(streams)
        made = self._made.get(count)

        def forms(size: int) -> int:
            return forms_of([matrix.kind], min(size, count))

        if made is None:

            def make(size: int) -> tuple[int, list[Launch]]:
                logits = self._logits(count)
                images = x.images(forms(size), size)
                return size, [Dense([matrix], image, [logits[a:b]], b - a) for a, b, image in images]

            made = self._made[count] = smaller_pieces(make)
        else:
            x.images(forms(made[0]), made[0])
        run(made[1])
        return self._logits(count), mix


class CudaJoin(v4.Join):
    """For a draft block, which nobody runs in a hurry: norms in plain torch."""

    def __init__(self, spec: v4.JoinSpec, memory: StepMemory):
        self._spec, self._memory = spec, memory
        self._projections = [packed(projection) for projection in spec.projections]
        self._norms = vector(spec.embedding_norm), vector(spec.stream_norm)

    def run(self, streams: Streams | torch.Tensor, embedded: Embedded) -> Streams | LongStreams:
        n, hidden, eps = self._spec.streams, self._spec.hidden, self._spec.eps
        before = streams.settle() if isinstance(streams, Streams) else streams
        rows = len(before)
        e = _normed(embedded.tensor()[:rows], self._norms[0], eps)
        h = _normed(before, self._norms[1], eps)
        if len(self._projections) == 1:  # columns: embedding first, then hidden
            both = torch.cat((e[:, None].expand_as(h), h), dim=-1).reshape(rows * n, 2 * hidden)
            out = self._product(0, both).view(rows, n, hidden)
        else:
            out = self._product(1, h.reshape(rows * n, hidden)).view(rows, n, hidden)
            out = out + self._product(0, e)[:, None]
        if rows > BUCKETS[-1]:
            return LongStreams(out.contiguous())
        key = ("draft streams", rows)
        workspace = self._memory.workspace
        joined = workspace.once(key, lambda: Streams(workspace, "draft streams", rows, n, hidden))
        joined.begin().copy_(out)
        return joined

    def _product(self, number: int, x: torch.Tensor) -> torch.Tensor:
        matrix, x = self._projections[number], x.contiguous()
        out = torch.empty(len(x), matrix.rows, device="cuda")
        if len(x) > self._spec.streams * BUCKETS[-1]:
            halves = HalfRows.empty(len(x), matrix.columns, 2)
            make_halves(x, halves)
            multiply([matrix], halves, [out], planes=2)
            return out
        for a, b in pieces(len(x)):
            Dense([matrix], x[a:b], [out[a:b]], b - a).launch()
        return out


def _normed(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm

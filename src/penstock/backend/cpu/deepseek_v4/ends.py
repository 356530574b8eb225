"""Where a model begins and ends: tokens to rows, streams to logits, and the way into a draft block."""

from collections.abc import Iterable
from ctypes import c_int64, c_void_p

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DeviceWeight, Logits
from penstock.backend.cpu.deepseek_v4.batch import Batch
from penstock.backend.cpu.deepseek_v4.described import Described, expect, vector, weight_of
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.native import structs
from penstock.native.library import native


class CpuEmbedding(v4.Embedding):
    def __init__(self, weight: DeviceWeight, workspace: Workspace):
        self.weight, self._workspace = weight_of(weight), workspace

    def run(self, batch: Batch) -> Buffer:
        out = self._workspace.take("embedded", batch.rows, self.weight.info.shape[1:])  # [rows, hidden]
        size = out.array.strides[0]
        for row, token in enumerate(batch.step.tokens.tolist()):
            self.weight.row(token, out.array[row], out.address + row * size)
        return out


class CpuHead(v4.Head):
    def __init__(self, spec: v4.HeadSpec, workspace: Workspace, threads: int):
        n, hidden = spec.streams, len(spec.norm)
        fn = weight_of(spec.fn)
        expect(
            fn.info.shape == (n, n * hidden) and spec.base.size == n and spec.scale.size in (1, n),
            f"{fn.info.name}: {list(fn.info.shape)} does not fit {n} streams of {hidden}",
        )
        base, norm = vector(spec.base), vector(spec.norm)
        scale = vector(np.broadcast_to(spec.scale, (n,)))
        self.described = Described(
            structs.Head(
                *(fn.address, base.address, scale.address, norm.address, n, hidden, spec.eps, spec.rms_eps)
            ),
            *(fn, base, scale, norm),
        )
        self._streams, self._hidden, self.vocab = (n, hidden), (hidden,), spec.vocab
        self._workspace, self._threads = workspace, threads

    def run(self, streams: Buffer, rows: NDArray[np.int64], output: Iterable[DeviceWeight]) -> Logits:
        count = len(rows)
        chosen = streams
        if count != len(streams.array):
            chosen = self._workspace.take("head streams", count, self._streams)
            np.take(streams.array, rows, axis=0, out=chosen.array)
        x = self._workspace.take("head input", count, self._hidden)
        native().ps_head_input(self.described.address, chosen.address, count, x.address, self._threads)
        logits = np.empty((count, self.vocab), np.float32)
        at = 0
        for piece in output:
            weight = weight_of(piece)
            native().ps_products(
                *((c_void_p * 1)(weight.address), 1, x.address, *self._hidden, count),
                *((c_void_p * 1)(logits.ctypes.data + 4 * at), (c_int64 * 1)(self.vocab), self._threads),
            )
            at += weight.info.shape[0]
        return logits


class CpuJoin(v4.Join):
    def __init__(self, spec: v4.JoinSpec, workspace: Workspace, threads: int):
        self.spec, self._workspace, self._threads = spec, workspace, threads
        self.projections = [weight_of(projection) for projection in spec.projections]
        self.norms = vector(spec.embedding_norm), vector(spec.stream_norm)
        self.round_group = 0  # channels that share a scale where inputs are rounded; 0: they are not

    def run(self, streams: Buffer, embedded: Buffer) -> Buffer:
        n, hidden = self.spec.streams, self.spec.hidden
        rows = len(streams.array)
        e = self._normed("draft embedded", embedded, rows, self.norms[0])
        h = self._normed("draft streams", streams, rows * n, self.norms[1])
        out = self._workspace.take("draft input", rows, (n, hidden))
        if len(self.projections) == 1:  # columns: embedding first, then hidden
            both = self._workspace.take("draft both", rows * n, (2 * hidden,))
            both.array.reshape(rows, n, 2 * hidden)[..., :hidden] = e.array[:, None]
            both.array[:, hidden:] = h.array
            self._product(0, both, out)
        else:
            projected = self._workspace.take("draft projected", rows, (hidden,))
            self._product(0, e, projected)
            self._product(1, h, out)
            out.array += projected.array[:, None]
        return out

    def _normed(self, name: str, x: Buffer, rows: int, norm: Buffer) -> Buffer:
        out = self._workspace.take(name, rows, (self.spec.hidden,))
        native().ps_rms_norm(
            *(x.address, norm.address, rows, self.spec.hidden, self.spec.eps, out.address, self._threads)
        )
        if self.round_group:
            native().ps_round_fp8(out.address, rows, self.spec.hidden, self.round_group, self._threads)
        return out

    def _product(self, number: int, x: Buffer, out: Buffer) -> None:
        rows, columns = x.array.shape
        native().ps_products(
            *((c_void_p * 1)(self.projections[number].address), 1, x.address, columns, rows),
            *((c_void_p * 1)(out.address), (c_int64 * 1)(self.spec.hidden), self._threads),
        )

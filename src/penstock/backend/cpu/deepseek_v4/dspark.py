"""What a DSpark module has besides the ops of layers: attention among guesses, features of the trunk, and the way
from its streams to tokens."""

from collections.abc import Iterable
from ctypes import c_int64, c_void_p

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DeviceWeight
from penstock.backend.cpu.deepseek_v4.attention import CpuAttention
from penstock.backend.cpu.deepseek_v4.batch import ROW_KINDS, Batch
from penstock.backend.cpu.deepseek_v4.described import vector, weight_of
from penstock.backend.cpu.deepseek_v4.ends import CpuHead
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.backend.state import DTYPES
from penstock.native import structs
from penstock.native.library import native


class CpuBlockAttention(CpuAttention):
    """Rows see the window before them and each other.  To the native code each row is a sequence of its own, at the
    end of a ring that has the window's rows, then those of the other rows, then its own."""

    def run(self, x: Buffer, batch: Batch) -> Buffer:
        (sequence,) = batch.sequences
        rows, dim = sequence.count, self.spec.dim
        before = min(self.spec.window, sequence.position - sequence.since)
        series = self._pool.layout.series[self.state.window]
        keys = self._keys_of(x, batch)  # [rows, dim]
        room = self.spec.window + self.spec.block
        rings = self._workspace.take("block rings", rows, (room, dim), DTYPES[series.dtype])
        rings.array[:, :before] = self._pool.read(
            sequence.slot, self.state.window, sequence.position - before, sequence.position
        )
        for row in range(rows):
            rings.array[row, before : before + rows] = np.roll(keys, -1 - row, axis=0)
        described = np.zeros(rows, np.dtype(structs.Ring))
        states = np.zeros(rows, np.dtype(structs.SequenceState))
        described["data"] = rings.address + rings.array.strides[0] * np.arange(rows)
        described["capacity"], described["width"] = room, dim
        described["kind"] = ROW_KINDS[series.dtype]
        states["window"] = described.ctypes.data + described.strides[0] * np.arange(rows)
        states["start"], states["count"], states["position"] = np.arange(rows), 1, before + rows - 1
        at = states.ctypes.data + states.strides[0] * np.arange(rows, dtype=np.int64)
        cos, sin = batch.rotations[id(self.spec.frequencies)]
        out = self._workspace.take("attention", rows, self._hidden)
        native().ps_attention_layer_run(
            *(self.described.address, at.ctypes.data, rows, x.address, rows),
            *(cos.address, sin.address, out.address, self._threads),
        )
        return out

    def _keys_of(self, x: Buffer, batch: Batch) -> NDArray[np.generic]:
        """The rows' own, as they would stand in the window."""
        (sequence,) = batch.sequences
        rows, dim = sequence.count, self.spec.dim
        series = self._pool.layout.series[self.state.window]
        cos, sin = batch.rotations[id(self.spec.frequencies)]
        projected = self._workspace.take("draft keys", rows, (dim,))
        native().ps_project(self.kv_alone.address, x.address, rows, projected.address, self._threads)
        keys: NDArray[np.generic] = np.empty((rows, dim), DTYPES[series.dtype])
        ring = np.zeros(1, np.dtype(structs.Ring))
        ring[0] = (keys.ctypes.data, rows, dim, ROW_KINDS[series.dtype])
        native().ps_keys_run(
            *(self.keys_alone.address, projected.address, dim, cos.address, sin.address, rows),
            *(ring.ctypes.data, None, 0, self._threads),
        )
        return keys


class CpuFeatures(v4.Features):
    def __init__(self, spec: v4.FeaturesSpec, workspace: Workspace, threads: int):
        self._projection, self._norm, self._eps = weight_of(spec.projection), vector(spec.norm), spec.eps
        self._hidden, self._width = self._projection.info.shape
        self._workspace, self._threads = workspace, threads

    def take(self, number: int, streams: Buffer, batch: Batch) -> None:
        del batch
        first, last = number * self._hidden, (number + 1) * self._hidden
        features = self._workspace.take("features", len(streams.array), (self._width,))
        np.mean(streams.array, axis=1, out=features.array[:, first:last])

    def run(self, batch: Batch) -> tuple[Buffer, Batch]:
        rows = batch.rows
        features = self._workspace.take("features", rows, (self._width,))
        projected = self._workspace.take("projected features", rows, (self._hidden,))
        out = self._workspace.take("main features", rows, (self._hidden,))
        native().ps_products(
            *((c_void_p * 1)(self._projection.address), 1, features.address, self._width, rows),
            *((c_void_p * 1)(projected.address), (c_int64 * 1)(self._hidden), self._threads),
        )
        native().ps_rms_norm(
            *(
                projected.address,
                self._norm.address,
                rows,
                self._hidden,
                self._eps,
                out.address,
                self._threads,
            )
        )
        return out, batch


class CpuMarkovHead(v4.MarkovHead):
    def __init__(self, spec: v4.MarkovSpec, workspace: Workspace, threads: int):
        self._previous, self._following = weight_of(spec.previous), weight_of(spec.following)
        self._head, self._fold = CpuHead(spec.head, workspace, threads), spec.head
        self._fn = weight_of(spec.head.fn)
        self._confidence = spec.confidence.reshape(-1)
        self._vocab, self._rank = self._following.info.shape
        self._workspace, self._threads = workspace, threads

    def run(
        self, streams: Buffer, batch: Batch, most: int, least: float, output: Iterable[DeviceWeight]
    ) -> list[tuple[int, float]]:
        logits = self._head.run(streams, np.arange(min(most, batch.rows)), output)
        hidden = self._folded(streams.array)  # [rows, hidden]
        token, found, all_right = int(batch.step.tokens[0]), list[tuple[int, float]](), 1.0
        said = self._workspace.take("markov", 1, (self._rank,))
        added = self._workspace.take("markov logits", 1, (self._vocab,))
        for row, x in zip(logits, hidden, strict=False):
            if all_right < least:
                break
            self._previous.row(token, said.array[0], said.address)
            native().ps_products(
                *((c_void_p * 1)(self._following.address), 1, said.address, self._rank, 1),
                *((c_void_p * 1)(added.address), (c_int64 * 1)(self._vocab), self._threads),
            )
            row += added.array[0]
            token = int(row.argmax())
            sure = float(self._confidence @ np.concatenate((x, said.array[0])))
            chance = 1 / (1 + float(np.exp(-sure)))
            all_right *= chance
            found.append((token, chance))
        return found

    def _folded(self, streams: NDArray[np.float32]) -> NDArray[np.float32]:
        """[rows, n, hidden] → [rows, hidden], before any norm"""
        fold, flat = self._fold, streams.reshape(len(streams), -1)
        assert self._fn.stored is not None
        normed = flat / np.sqrt(np.mean(flat * flat, axis=1, keepdims=True) + fold.rms_eps)
        mix = normed @ self._fn.stored.decode().T * fold.scale + fold.base  # [rows, n]
        found: NDArray[np.float32] = np.einsum("rn,rnd->rd", 1 / (1 + np.exp(-mix)) + fold.eps, streams)
        return found

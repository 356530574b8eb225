"""What a DSpark module has besides the ops of layers: attention among guesses, features of the trunk, and the way
from its streams to tokens.

A block of guesses is two graphs, and one small copy when all of its tokens are chosen: each choice reads the one
before it where that lies.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DeviceWeight
from penstock.backend.cuda.attention import Places
from penstock.backend.cuda.deepseek_v4.attention import CudaAttention, packed
from penstock.backend.cuda.deepseek_v4.batch import Batch, Launch, StepMemory, padded, pieces, run
from penstock.backend.cuda.deepseek_v4.ends import CudaHead
from penstock.backend.cuda.deepseek_v4.hyper import Images, Streams, SublayerInput
from penstock.backend.cuda.deepseek_v4.long_steps import LongBatch, LongStreams
from penstock.backend.cuda.deepseek_v4.sizes import FEATURE_ROWS
from penstock.backend.cuda.dense import Dense
from penstock.backend.cuda.device import translated
from penstock.backend.cuda.dspark import ChooseGuess, MeanStreams, Sureness
from penstock.backend.cuda.hyper import MakeImage
from penstock.backend.cuda.inputs import Image, Input
from penstock.backend.cuda.launch import Recorded, module
from penstock.backend.cuda.placed import TABLE_KINDS, CudaWeight, vector
from penstock.backend.cuda.plain import Embed
from penstock.backend.cuda.prefill_products import HalfRows, make_halves, multiply, prepare
from penstock.backend.cuda.weights import Packed


class BlockKeys:
    """Which rows of a window's ring the rows of a block see: the last ones before the block, and the block's own
    behind them, where nothing counts before the position has moved.  Written once for all stages, whose rings are
    alike."""

    def __init__(self, window: int, block: int, capacity: int):
        self.window, self.capacity, self.rows = window, capacity, padded(block)
        most = window + block
        self._device = torch.zeros(self.rows * (most + 2), dtype=torch.int32, device="cuda")
        self._pinned = torch.zeros(self.rows * (most + 2), dtype=torch.int32).pin_memory()
        self._copied = torch.cuda.Event()
        self._host = _parts(self._pinned.numpy(), self.rows, most)
        # Places in the ring [rows, most]; of each row how many it sees, and the last of these by number.
        self.picks, self.counts, self.ends = _parts(self._device, self.rows, most)

    def show(self, position: int, block: int, since: int) -> None:
        """To a block of so many rows from `position` on, of which the window has rows from `since` on."""
        before = min(self.window, position - since)
        count = before + block
        self._copied.synchronize()  # the card has had what was there
        picks, counts, ends = self._host
        picks[:, :count] = (position - before + np.arange(count)) % self.capacity
        counts[:], ends[:] = count, count - 1
        self._device.copy_(self._pinned, non_blocking=True)
        self._copied.record()


def _parts(memory: Any, rows: int, most: int) -> tuple[Any, Any, Any]:
    picks = rows * most
    return memory[:picks].reshape(rows, most), memory[picks : picks + rows], memory[picks + rows :]


class CudaBlockAttention(CudaAttention):
    """Rows see the window before them and each other: to the kernels these are rows that an indexer has picked."""

    def __init__(self, spec: v4.AttentionSpec, state: v4.AttentionState, memory: StepMemory, keys: BlockKeys):
        super().__init__(spec, state, memory, cuts=False)
        self._keys = keys

    def _attention(
        self, q: torch.Tensor, places: Places, picked: tuple[torch.Tensor, torch.Tensor] | None, a: int, b: int
    ) -> tuple[Input, Launch]:  # fmt: skip
        del picked
        keys = self._keys
        seen = Places(keys.ends[a:b], places.states, places.frequencies, places.turns)
        picked = (keys.picks[a:b], keys.counts[a:b])
        return self._attend(q, seen, 0, (1, self._window), picked, a, b)


class CudaFeatures(v4.Features):
    """kept: rows that a window's ring has room for"""

    def __init__(self, spec: v4.FeaturesSpec, memory: StepMemory, kept: int):
        self._projection, self._norm, self._eps = packed(spec.projection), vector(spec.norm), spec.eps
        self._hidden, self._width = self._projection.rows, self._projection.columns
        self._memory, self._kept = memory, kept
        self._made: dict[tuple[object, ...], list[Launch]] = {}
        module("dspark.cu")  # begins to be compiled
        if memory.long.expected:
            prepare([(self._projection.kind, False)])

    def take(self, number: int, streams: Streams | LongStreams, batch: Batch) -> None:
        first, last = number * self._hidden, (number + 1) * self._hidden
        y, mix = streams.pending or (None, None)
        if isinstance(streams, LongStreams):
            assert isinstance(batch, LongBatch)
            tail, some = batch.tail(self._kept)
            out = tail.memory.take("features", tail.rows, self._width)[:, first:last]
            MeanStreams(streams.now, y, mix, out, some).launch()
            return
        out = self._features(streams.rows)[:, first:last]
        key = (number, streams.rows, streams.now.data_ptr(), 0 if y is None else y.data_ptr())
        if key not in self._made:
            self._made[key] = [MeanStreams(streams.now, y, mix, out)]
        run(self._made[key])

    def _features(self, rows: int) -> torch.Tensor:
        return self._memory.workspace.take("features", -(-self._width // 8) * 8)[:rows, : self._width]

    def run(self, batch: Batch) -> tuple[SublayerInput | HalfRows, Batch]:
        if isinstance(batch, LongBatch):
            tail, _ = batch.tail(self._kept)
            return self._of_long(tail), tail
        rows = batch.rows
        x = self._memory.workspace.take("projected features", -(-self._hidden // 8) * 8)[
            :rows, : self._hidden
        ]
        key = ("project", rows)
        if key not in self._made:
            features = self._features(rows)
            self._made[key] = [
                Dense([self._projection], features[a:b], [x[a:b]], b - a) for a, b in pieces(rows)
            ]
        run(self._made[key])
        return SublayerInput(rows, lambda forms, size: self._images(x, forms, size)), batch

    def _images(self, x: torch.Tensor, forms: int, size: int) -> Images:
        images: Images = []
        for a, b in pieces(len(x), size):
            key = ("features image", a, b - a, self._hidden, forms)
            image = self._memory.workspace.once(key, partial(Image, b - a, self._hidden, forms))
            images.append((a, b, image))
        made = ("images", len(x), forms, size)
        if made not in self._made:
            self._made[made] = [MakeImage(x[a:b], image, self._norm, self._eps) for a, b, image in images]
        run(self._made[made])
        return images

    def _of_long(self, tail: LongBatch) -> HalfRows:
        memory, rows = tail.memory, tail.rows
        features = memory.take("features", rows, self._width)
        projected = memory.take("projected features", rows, self._hidden)
        for a in range(0, rows, FEATURE_ROWS):
            part = features[a : a + FEATURE_ROWS]
            halves = memory.halves("features", len(part), self._width, 2)
            make_halves(part, halves)
            multiply([self._projection], halves, [projected[a : a + FEATURE_ROWS]], planes=2)
        x = memory.halves("projected features", rows, self._hidden, 2)
        make_halves(projected, x, self._norm, self._eps)
        return x


class CudaMarkovHead(v4.MarkovHead):
    def __init__(self, spec: v4.MarkovSpec, memory: StepMemory, block: int):
        assert isinstance(spec.previous, CudaWeight)
        self._head, self._block = CudaHead(spec.head, memory), block
        self._previous, self._following = spec.previous.stored(TABLE_KINDS), packed(spec.following)
        hidden, rank = len(spec.head.norm), self._following.columns
        confidence = vector(spec.confidence.reshape(-1))
        self._of_streams, self._of_said = confidence[:hidden], confidence[hidden:]
        self._tokens = memory.tokens
        self._said = torch.zeros(1, 1, -(-rank // 8) * 8, device="cuda")[..., :rank]
        self._added = torch.zeros(1, self._following.rows, device="cuda")
        self._sure = torch.zeros(block, device="cuda")
        self._best = torch.zeros(2, dtype=torch.int64, device="cuda")
        self._found = torch.zeros(block, 2, dtype=torch.int32, device="cuda")
        self._graphs: dict[tuple[int, ...], Recorded] = {}

    def run(
        self, streams: Streams, batch: Batch, most: int, least: float, output: Iterable[DeviceWeight]
    ) -> list[tuple[int, float]]:
        """All rows go through, however many are wanted: the weights are read once for all of them."""
        del batch  # its tokens lie where they are read
        (weight,) = output
        found, all_right = list[tuple[int, float]](), 1.0
        with translated("guesses"):
            matrix = packed(weight)
            key = (streams.now.data_ptr(), *(tensor.data_ptr() for tensor in streams.pending or ()))
            if key not in self._graphs:
                self._graphs[key] = Recorded(lambda: self._launch(streams, matrix))
            self._graphs[key].run()
            streams.pending = None  # also where the graph was only repeated
            here = self._found.cpu().numpy()
        for token, chance in zip(here[:most, 0].tolist(), here[:most, 1].view(np.float32), strict=True):
            if all_right < least:
                break
            all_right *= float(chance)
            found.append((token, float(chance)))
        return found

    def _launch(self, streams: Streams, matrix: Packed) -> None:
        logits, mix = self._head.logits_of(streams, matrix)
        launches: list[Launch] = [Sureness(streams.now, mix, self._of_streams, self._sure)]
        product, before = Dense([self._following], self._said[0], [self._added], 1), self._tokens[:1]
        for row in range(self._block):
            own = self._found[row]
            launches += [
                Embed(self._previous, before, self._said),
                product,
                ChooseGuess(
                    logits[row], self._added, self._said, self._of_said, self._sure[row:], self._best, own
                ),
            ]
            before = own[:1]
        run(launches)

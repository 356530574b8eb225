"""Hyper-connections: out of one sublayer, into the next.

Leaving a sublayer and entering the next are one kernel, so `leave` waits for the next `enter`; and that waits until
the sublayer says in which forms its products want their input.
"""

from collections.abc import Callable

import numpy as np
import torch

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Vector
from penstock.backend.cuda.deepseek_v4.batch import Launch, StepMemory, pieces, run
from penstock.backend.cuda.deepseek_v4.long_steps import LongMixer, LongStreams
from penstock.backend.cuda.device import card
from penstock.backend.cuda.hyper import LeaveAndCollapse, LeaveAndEnter, MakeImage
from penstock.backend.cuda.inputs import MAX_ROWS, Image
from penstock.backend.cuda.memory import Workspace
from penstock.backend.cuda.placed import CudaWeight, vector
from penstock.backend.cuda.plain import LeaveStreams, MixStreams, StoredRows
from penstock.backend.cuda.prefill_products import HalfRows
from penstock.weights import types

Images = list[tuple[int, int, Image]]  # rows [first, last) of a step
Pending = tuple[torch.Tensor, torch.Tensor] | None  # a sublayer's output and its mix, not yet in the streams


class Streams:
    """[rows, n, hidden], in one of two buffers: a kernel that reads all streams cannot write where it reads."""

    def __init__(self, workspace: Workspace, name: str, rows: int, n: int, hidden: int):
        self._workspace, self.rows = workspace, rows
        self.buffers = [workspace.take(f"{name} {i}", n, hidden)[:rows] for i in range(2)]
        self.at = 0
        self.pending: Pending = None

    @property
    def now(self) -> torch.Tensor:
        return self.buffers[self.at]

    def begin(self) -> torch.Tensor:
        """To be filled anew."""
        self.at, self.pending = 0, None
        return self.now

    def settle(self) -> torch.Tensor:
        """With nothing left to be added."""
        if self.pending is not None:
            y, mix = self.pending
            key = ("settle", self.now.data_ptr(), self.rows, y.data_ptr(), mix.data_ptr())
            launch = self._workspace.once(key, lambda: LeaveStreams(self.now, y, mix))
            launch.launch()
            self.pending = None
        return self.now


class SublayerInput:
    """x [rows, hidden], normed, not made yet."""

    def __init__(self, rows: int, make: Callable[[int, int], Images]):
        self.rows, self._make = rows, make

    def images(self, forms: int, size: int = MAX_ROWS) -> Images:
        """In these forms, in pieces of so many rows."""
        return self._make(forms, size)


class CudaHyper(v4.Hyper):
    def __init__(self, spec: v4.HyperSpec, memory: StepMemory):
        fn = spec.fn
        assert isinstance(fn, CudaWeight)
        self._mixer = Mixer(
            fn.stored(), spec.base, spec.scale, spec.norm, spec.streams, spec.iterations, spec.eps, spec.rms_eps,
            False, memory,
        )  # fmt: skip

    def enter(self, streams: Streams | LongStreams) -> tuple[SublayerInput | HalfRows, torch.Tensor]:
        return (
            self._mixer.enter_long(streams)
            if isinstance(streams, LongStreams)
            else self._mixer.enter(streams)
        )

    def between(
        self, y: torch.Tensor, streams: Streams | LongStreams, mix: torch.Tensor
    ) -> tuple[SublayerInput | HalfRows, torch.Tensor]:
        streams.pending = (y, mix)
        return self.enter(streams)

    def leave(self, y: torch.Tensor, streams: Streams | LongStreams, mix: torch.Tensor) -> None:
        streams.pending = (y, mix)


class Mixer:
    """One hyper-connection, or the head's: the mix of the streams, and what it collapses them to."""

    def __init__(
        self, fn: StoredRows, base: Vector, scale: Vector, norm: Vector, n: int, iterations: int,
        eps: float, rms_eps: float, head: bool, memory: StepMemory,
    ):  # fmt: skip
        hidden = len(norm)
        outs = n if head else (2 + n) * n
        if not 0 < n <= 16 or (fn.rows, fn.columns) != (outs, n * hidden) or base.size != outs:
            raise ValueError(
                f"a mix of [{fn.rows}, {fn.columns}] does not fit {n} streams of {hidden}, at most 16"
            )
        self._n, self._hidden, self._iterations, self._head = n, hidden, iterations, head
        self._eps, self._rms_eps = eps, rms_eps
        self._base, self._norm = vector(base), vector(norm)
        self._workspace, self._fn, self._long_memory = memory.workspace, fn, memory.long
        whole = scale.size == 1 or not head
        usual = n == 4 and LeaveAndEnter.takes(hidden) and whole and fn.kind is not types.BF16
        self.fast, self._apart = usual and card().bulk, usual and not card().bulk
        self._scale = vector(scale if usual or not head else np.broadcast_to(scale, (n,)))
        self._made: dict[tuple[object, ...], list[Launch]] = {}
        memory.mixes.append(fn.data)
        self._long = LongMixer(self._base, self._scale, self._norm, eps, rms_eps, iterations)

    def enter_long(self, streams: LongStreams) -> tuple[HalfRows, torch.Tensor]:
        return self._long.enter(streams, self._matrix(), self._long_memory)

    def enter(self, streams: Streams) -> tuple[SublayerInput, torch.Tensor]:
        rows = streams.rows
        if self.fast:
            return self._leave_and_enter(streams)
        mix = self._workspace.take("mix", max(24, (2 + self._n) * self._n))[:rows]
        x = self._workspace.take("collapsed", -(-self._hidden // 4) * 4)[:rows, : self._hidden]
        if self._apart:
            self._leave_and_collapse(streams, mix, x)
        else:
            self._mix_streams(streams.settle(), mix, x)
        return SublayerInput(rows, lambda forms, size: self._images(x, forms, size)), mix

    def _mix_streams(self, streams: torch.Tensor, mix: torch.Tensor, x: torch.Tensor) -> None:
        key = ("mix", len(x), streams.data_ptr())
        if key not in self._made:
            self._made[key] = [
                MixStreams(
                    streams, self._fn, self._base, self._scale, mix, x, self._rms_eps, self._eps,
                    self._iterations, self._head,
                )
            ]  # fmt: skip
        run(self._made[key])

    def _leave_and_collapse(self, streams: Streams, mix: torch.Tensor, x: torch.Tensor) -> None:
        """What leaves was made with the mix that is still there: all have the same place."""
        y = streams.pending[0] if streams.pending else None
        streams.pending = None
        key = ("apart", len(x), streams.now.data_ptr(), 0 if y is None else y.data_ptr())
        if key not in self._made:
            parts = self._workspace.take("mix parts", LeaveAndCollapse.parts_floats(self._hidden))[: len(x)]
            self._made[key] = [
                LeaveAndCollapse(
                    streams.now, self._matrix(), self._base, self._scale, mix, x, parts, self._rms_eps, self._eps,
                    self._iterations, y,
                )
            ]  # fmt: skip
        run(self._made[key])

    def _matrix(self) -> torch.Tensor:
        dtypes = {types.F32: torch.float32, types.F16: torch.float16, types.BF16: torch.bfloat16}
        return self._fn.data.view(dtypes[self._fn.kind]).view(self._fn.rows, -1)

    def _leave_and_enter(self, streams: Streams) -> tuple[SublayerInput, torch.Tensor]:
        """A mix has two places as the streams have, so that the launch can be repeated in other forms."""
        y, before = streams.pending or (None, None)
        now, rows = streams.now, streams.rows
        streams.at, streams.pending = 1 - streams.at, None
        after, mix = streams.now, self._workspace.take(f"mix {streams.at}", 24)[:rows]
        fn = self._matrix()

        def make(a: int, b: int, image: Image) -> Launch:
            return LeaveAndEnter(
                after[a:b], fn, self._base, self._scale, mix[a:b], self._norm, image, self._rms_eps, self._eps,
                self._iterations, now[a:b], None if y is None else y[a:b],
                None if before is None else before[a:b],
            )  # fmt: skip

        def entered(forms: int, size: int) -> Images:
            images: Images = [(a, b, self._image(a, b, forms)) for a, b in pieces(rows, size)]
            key = ("enter", rows, now.data_ptr(), 0 if y is None else y.data_ptr(), forms, size)
            if key not in self._made:
                self._made[key] = [make(*each) for each in images]
            run(self._made[key])
            return images

        return SublayerInput(rows, entered), mix

    def _image(self, first: int, last: int, forms: int) -> Image:
        rows = last - first
        key = ("sublayer image", first, rows, self._hidden, forms)
        return self._workspace.once(key, lambda: Image(rows, self._hidden, forms))

    def _images(self, x: torch.Tensor, forms: int, size: int) -> Images:
        rows, made = len(x), self._made
        images: Images = [(a, b, self._image(a, b, forms)) for a, b in pieces(rows, size)]
        key = ("image", rows, forms, size)
        if key not in made:
            made[key] = [MakeImage(x[a:b], image, self._norm, self._rms_eps) for a, b, image in images]
        run(made[key])
        return images

"""Hyper-connections: into a sublayer, from one to the next, and out."""

from penstock.backend import deepseek_v4 as v4
from penstock.backend.cpu.deepseek_v4.described import Described, expect, vector, weight_of
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.native import structs
from penstock.native.library import native


class CpuHyper(v4.Hyper):
    def __init__(self, spec: v4.HyperSpec, workspace: Workspace, threads: int):
        n, hidden = spec.streams, len(spec.norm)
        width = (2 + n) * n
        most = native().ps_limit(b"streams")
        fn = weight_of(spec.fn)
        expect(
            0 < n <= most
            and fn.info.shape == (width, n * hidden)
            and spec.base.size == width
            and spec.scale.size == 3,
            f"{fn.info.name}: {list(fn.info.shape)} does not fit {n} streams of {hidden}, at most {most}",
        )
        base, scale, norm = vector(spec.base), vector(spec.scale), vector(spec.norm)
        self.described = Described(
            structs.Hyper(
                *(fn.address, base.address, scale.address, norm.address),
                *(n, hidden, spec.iterations, spec.eps, spec.rms_eps),
            ),
            *(fn, base, scale, norm),
        )
        self._shape, self._mix = (hidden,), (width,)
        self._workspace, self._threads = workspace, threads

    def enter(self, streams: Buffer) -> tuple[Buffer, Buffer]:
        return self._enter(None, None, streams)

    def between(self, y: Buffer, streams: Buffer, mix: Buffer) -> tuple[Buffer, Buffer]:
        return self._enter(y.address, mix.address, streams)

    def _enter(self, y: int | None, before: int | None, streams: Buffer) -> tuple[Buffer, Buffer]:
        rows = len(streams.array)
        x = self._workspace.take("sublayer input", rows, self._shape)  # [rows, hidden]
        mix = self._workspace.take("hyper mix", rows, self._mix)  # [rows, pre n | post n | comb n · n]
        native().ps_hyper_enter(
            *(
                self.described.address,
                y,
                before,
                streams.address,
                rows,
                x.address,
                mix.address,
                self._threads,
            )
        )
        return x, mix

    def leave(self, y: Buffer, streams: Buffer, mix: Buffer) -> None:
        native().ps_hyper_leave(
            *(y.address, streams.address, mix.address, *streams.array.shape, self._threads)
        )

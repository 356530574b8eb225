"""Which experts a token goes to."""

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.cpu.deepseek_v4.batch import Batch
from penstock.backend.cpu.deepseek_v4.described import Described, expect, vector, weight_of
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.native import structs
from penstock.native.library import native


class CpuRouter(v4.GuessingRouter):
    def __init__(self, spec: v4.RouterSpec, workspace: Workspace, threads: int):
        gate = weight_of(spec.gate)
        experts, name = gate.info.shape[0], gate.info.name
        table = None if spec.table is None else Buffer(np.ascontiguousarray(spec.table, np.int64))
        bias = None if spec.bias is None else vector(spec.bias)
        expect(0 < spec.count <= experts, f"{name}: {spec.count} of {experts} experts")
        expect(bias is None or bias.array.size == experts, f"{name}: a bias for other experts")
        expect(
            table is None
            or (
                table.array.shape[1] == spec.count
                and bool(((table.array >= 0) & (table.array < experts)).all())
            ),
            f"{name}: a table of other experts",
        )
        self.described = Described(
            structs.Router(
                *(gate.address, bias.address if bias else None, table.address if table else None),
                *(spec.count, spec.normalize, spec.scale),
            ),
            *(gate, bias, table),
        )
        self.count, self._workspace, self._threads = spec.count, workspace, threads

    def run(self, x: Buffer, batch: Batch) -> tuple[Buffer, Buffer]:
        return self._route(x, batch, "expert")

    def guess(self, x: Buffer, batch: Batch) -> NDArray[np.int64]:
        return self._route(x, batch, "guessed expert")[0].array

    def _route(self, x: Buffer, batch: Batch, name: str) -> tuple[Buffer, Buffer]:
        ids = self._workspace.take(f"{name} ids", batch.rows, (self.count,), np.int64)
        weights = self._workspace.take(f"{name} weights", batch.rows, (self.count,))
        native().ps_route_rows(
            *(self.described.address, x.address, batch.tokens.address, batch.rows),
            *(ids.address, weights.address, self._threads),
        )
        return ids, weights

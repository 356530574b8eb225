"""Routed experts and the shared one, on the CPU."""

from typing import Final

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DividedLease, ExpertLease
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable
from penstock.native.library import native

# Rows up to which each expert's term is kept, so that experts can be computed as they come.  With more, terms would
# take too much memory: experts are read and computed in ascending order then, each one once for all rows.
FEW: Final = 16


class CpuExperts(v4.TermwiseExperts):
    """Σ weight · expert(x), always in ascending order of id: to the bit the same whatever comes when."""

    def __init__(self, spec: v4.ExpertsSpec, workspace: Workspace, threads: int):
        assert isinstance(spec.shared, CpuExpert)
        self.shared: CpuExpert = spec.shared
        self.spec, self._workspace, self._threads = spec, workspace, threads
        self.weighted_terms = False  # whether terms come with their routing weight

    def run(self, x: Buffer, ids: Buffer, weights: Buffer, lease: ExpertLease | DividedLease) -> Buffer:
        assert not isinstance(lease, DividedLease)
        if lease.elsewhere is not None or (len(x.array) <= FEW and not lease.resident):
            return self._as_they_come(x, ids, weights, lease)
        spec, rows = self.spec, len(x.array)
        out = self._workspace.take("experts", rows, (spec.hidden,))  # [rows, hidden]
        begun = False
        for table in lease.in_order():
            assert isinstance(table, CpuExpertTable)
            shared = self.shared.address if lease.last else None
            native().ps_experts(
                *(table.address, len(table), ids.address, weights.address, ids.array.shape[1], spec.limit),
                *(shared, spec.shared_limit, x.address, rows, out.address, begun, self._threads),
            )
            begun = True
        return out

    def _as_they_come(self, x: Buffer, ids: Buffer, weights: Buffer, lease: ExpertLease) -> Buffer:
        spec, elsewhere = self.spec, lease.elsewhere
        rows, slots = ids.array.shape
        terms = self._room_for_terms(rows, slots)
        own = ids if elsewhere is None else elsewhere.begin(x, ids, weights, terms)
        self._compute(x, own, weights, lease, terms, self.shared)
        for left, again in () if elsewhere is None else elsewhere.finish():
            self._compute(x, left, weights, again, terms)
        out = self._workspace.take("experts", rows, (spec.hidden,))
        scales = None if self.weighted_terms else weights.address
        native().ps_expert_sum(
            *(ids.address, scales, rows, slots, True, terms.address, spec.hidden, out.address, self._threads)
        )
        return out

    def terms(self, x: Buffer, ids: Buffer, weights: Buffer, lease: ExpertLease) -> Buffer:
        terms = self._room_for_terms(*ids.array.shape)
        self._compute(x, ids, weights, lease, terms)
        return terms

    def _room_for_terms(self, rows: int, slots: int) -> Buffer:
        """[rows · slots routed terms, then rows of the shared expert, hidden]"""
        return self._workspace.take("expert terms", rows * slots + rows, (self.spec.hidden,))

    def _compute(
        self,
        x: Buffer,
        ids: Buffer,
        weights: Buffer,
        lease: ExpertLease,
        terms: Buffer,
        shared: CpuExpert | None = None,
    ) -> None:
        """Terms of these ids, and of the shared expert if it is given."""
        spec, (rows, slots) = self.spec, ids.array.shape
        for table in lease.as_they_come():
            assert isinstance(table, CpuExpertTable)
            # The shared expert fills the time in which the others are on their way.
            now = shared if lease.requested else None
            native().ps_expert_terms(
                *(table.address, len(table), ids.address, weights.address, slots, spec.limit),
                *(None if now is None else now.address, spec.shared_limit, x.address, rows, terms.address),
                self._threads,
            )
            if now is not None:
                shared = None

"""The router, routed experts and the shared one."""

from typing import NamedTuple

import numpy as np
import torch

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DividedLease, ExpertLease
from penstock.backend.cuda.deepseek_v4.batch import Batch, Launch, StepMemory, run, smaller_pieces
from penstock.backend.cuda.deepseek_v4.divided import Add, Divided, divided_forms, run_waves
from penstock.backend.cuda.deepseek_v4.hyper import Images, SublayerInput
from penstock.backend.cuda.deepseek_v4.long_steps import LongBatch
from penstock.backend.cuda.dense import Dense, slices_of
from penstock.backend.cuda.experts import Down, Up, shared_comes_along, takes_along, up_forms
from penstock.backend.cuda.experts_many import ManyExperts, many_memory
from penstock.backend.cuda.inputs import (
    FLOATS,
    MAX_ROWS,
    PIECE,
    DigitVectors,
    Image,
    address,
    few_rows,
    forms_of,
    input_bytes,
)
from penstock.backend.cuda.placed import CudaExpert, CudaExpertStack, CudaWeight, vector
from penstock.backend.cuda.plain import PlainExperts, Route
from penstock.backend.cuda.prefill_experts import Groups, run_experts
from penstock.backend.cuda.prefill_products import HalfRows, multiply, multiply_swiglu, prepare
from penstock.backend.cuda.routing import Router
from penstock.backend.cuda.slots import CudaExpertSlots
from penstock.backend.device import HostBackend


class Routed(NamedTuple):
    """Rows whose experts are still to be chosen, by the kernels that need them."""

    router: "CudaRouter"
    batch: Batch


class CudaRouter(v4.Router):
    def __init__(self, spec: v4.RouterSpec, memory: StepMemory):
        assert isinstance(spec.gate, CudaWeight)
        self.spec, self.memory = spec, memory
        self.gate = spec.gate.packed()
        self.bias = None if spec.bias is None else vector(spec.bias)
        self.table = None if spec.table is None else torch.from_numpy(spec.table.astype(np.int32)).cuda()
        self._number = len(memory.routers)
        memory.routers.append(self)

    @property
    def following(self) -> "CudaRouter | None":
        """The next layer's, if it can be guessed what it will choose."""
        routers, number = self.memory.routers, self._number + 1
        found = routers[number] if number < len(routers) else None
        return (
            found if found is not None and found.table is None and found.gate.kind is self.gate.kind else None
        )

    def run(self, x: SublayerInput | HalfRows, batch: Batch) -> tuple[Routed, None]:
        del x  # the experts have it too
        return Routed(self, batch), None


class CudaExperts(v4.Experts):
    """beside: the host's processors, where they have a share of the work"""

    def __init__(self, spec: v4.ExpertsSpec, memory: StepMemory, beside: HostBackend):
        assert isinstance(spec.shared, CudaExpert)
        self._spec, self._shared, self._memory, self._beside = spec, spec.shared, memory, beside
        self._made: dict[int, tuple[int, list[Launch]]] = {}
        self._divided: dict[int, tuple[int, Divided]] = {}
        self._next_mix = len(memory.mixes)
        if memory.long.expected:
            prepare([(spec.shared.gate_up.kind, True), (spec.shared.down.kind, False)])

    def run(
        self, x: SublayerInput | HalfRows, ids: Routed, weights: None, lease: ExpertLease | DividedLease
    ) -> torch.Tensor:
        del weights  # chosen with the ids
        if isinstance(x, HalfRows):
            assert isinstance(ids.batch, LongBatch)
            return self._run_long(x, ids.router, ids.batch, lease)
        rows = x.rows
        if isinstance(lease, DividedLease):
            self._run_divided(x, ids.router, lease)
            return self._memory.workspace.take("experts", self._spec.hidden)[:rows]
        if rows not in self._made:
            stack = _stack(lease)
            most = MAX_ROWS if stack.fast else PIECE
            self._made[rows] = smaller_pieces(lambda size: self._make(size, x, ids.router, stack), most)
            run(self._made[rows][1])
        else:
            size, launches = self._made[rows]
            x.images(self._forms(min(size, rows), ids.router, lease), size)
            run(launches)
        return self._memory.workspace.take("experts", self._spec.hidden)[:rows]

    def _run_divided(self, x: SublayerInput, router: CudaRouter, lease: DividedLease) -> None:
        slots, rows = lease.slots, x.rows
        assert isinstance(slots, CudaExpertSlots)

        def forms(size: int) -> int:
            return divided_forms(self._shared, router, slots, min(size, rows))

        def make(size: int) -> tuple[int, Divided]:
            images = x.images(forms(size), size)
            ahead = self._memory.mix(self._next_mix)
            return size, Divided(self._spec, router, self._memory, lease, images, self._beside, ahead)

        if rows not in self._divided:
            self._divided[rows] = smaller_pieces(make, PIECE)
        else:
            size, _ = self._divided[rows]
            x.images(forms(size), size)
        self._divided[rows][1].run()

    def _run_long(
        self, x: HalfRows, router: CudaRouter, batch: LongBatch, lease: ExpertLease | DividedLease
    ) -> torch.Tensor:
        spec, shared, memory, rows = self._spec, self._shared, batch.memory, batch.rows
        slots = lease.slots if isinstance(lease, DividedLease) else _stack(lease)
        assert isinstance(slots, CudaExpertSlots | CudaExpertStack)
        gate_up, down = slots.gate_up, slots.down
        assert gate_up is not None
        assert down is not None
        routing, width = router.spec, gate_up.rows
        logits = memory.take("router logits", rows, router.gate.rows)
        multiply([router.gate], x, [logits], planes=x.planes)  # choices are discrete: all bits that there are
        groups = Groups(rows, routing.count, router.gate.rows)
        tokens = batch.tokens if router.table is not None else None
        groups.route(logits, routing.scale, router.bias, router.table, tokens, routing.normalize)
        inner = memory.halves("shared inner", rows, shared.gate_up.rows)
        multiply_swiglu(shared.gate_up, x, inner, spec.shared_limit)
        beside = memory.take("shared expert", rows, spec.hidden)
        multiply([shared.down], inner, [beside])
        items = rows * routing.count
        acts, terms = memory.halves("acts", items, width), memory.take("terms", items, spec.hidden)
        out = memory.take("experts", rows, spec.hidden)
        if isinstance(lease, DividedLease):
            run_waves(lease, x, groups, spec.limit, acts, terms, beside, out)
        else:
            run_experts(gate_up, down, x, groups, spec.limit, acts, terms, beside, out)
        return out

    def _forms(self, rows: int, router: CudaRouter, lease: ExpertLease) -> int:
        stack = _stack(lease)
        kinds = [self._shared.gate_up.kind, router.gate.kind]
        routed = up_forms(stack.gate_up.kind, rows) if stack.gate_up is not None else FLOATS
        return forms_of(kinds, rows) | routed

    def _make(
        self, size: int, x: SublayerInput, router: CudaRouter, stack: CudaExpertStack
    ) -> tuple[int, list[Launch]]:
        kinds = [self._shared.gate_up.kind, router.gate.kind]
        rows = min(size, x.rows)
        routed = up_forms(stack.gate_up.kind, rows) if stack.gate_up is not None else FLOATS
        images = x.images(forms_of(kinds, rows) | routed, size)
        out = self._memory.workspace.take("experts", self._spec.hidden)
        if not stack.fast:
            return size, [
                launch
                for a, b, image in images
                for launch in self._plain(a, b, image, out[a:b], router, stack)
            ]
        if rows > few_rows():
            return size, self._many(images, out[: x.rows], router, stack)
        return size, [
            launch for a, b, image in images for launch in self._few(a, b, image, out[a:b], router, stack)
        ]

    def _router(self, router: CudaRouter, a: int, b: int, parts: int = 0) -> Router:
        """Of rows [a, b).  parts: of their logits, where they come in parts"""
        workspace, spec, rows, experts = self._memory.workspace, router.spec, b - a, router.gate.rows
        logits = workspace.take("router logits", experts)[a:b]
        if parts:
            logits = workspace.once(
                ("parts of logits", a, parts, rows, experts),
                lambda: torch.zeros(parts, rows, experts, device="cuda"),
            )
        tokens = self._memory.tokens[a:b] if router.table is not None else None
        return Router(logits, spec.count, spec.scale, router.bias, router.table, tokens, spec.normalize)

    def _few(
        self, a: int, b: int, image: Image, out: torch.Tensor, router: CudaRouter, stack: CudaExpertStack
    ) -> list[Launch]:  # fmt: skip
        spec, rows, shared, workspace = self._spec, b - a, self._shared, self._memory.workspace
        assert stack.gate_up is not None
        assert stack.down is not None
        count, width, gate = router.spec.count, stack.gate_up.rows, router.gate
        ahead = self._memory.mix(self._next_mix)
        along = takes_along(gate, shared.gate_up, shared.down, stack.gate_up, rows)
        chosen = self._router(router, a, b, slices_of(gate) if along else 0)
        acts = workspace.once(("acts", rows, count, width), lambda: DigitVectors(rows * count, width, 64))
        inner = workspace.once(
            ("shared acts", a, rows, shared.gate_up.rows), lambda: DigitVectors(rows, shared.gate_up.rows)
        )
        given = (stack.gate_up, chosen, image, acts, rows)
        if along:
            up = Up(*given, gate, shared.gate_up, inner, spec.limit, spec.shared_limit)
            return [up, Down(stack.down, chosen, acts, out, rows, shared.down, inner, ahead)]
        decide = Dense([gate], image, [chosen.logits], rows, late=True, stages=4)
        up = Up(*given, limit=spec.limit)
        if shared_comes_along(shared.gate_up, shared.down, stack.gate_up):
            beside = Dense(
                [shared.gate_up], image, [inner.values], rows, digits=inner, limit=spec.shared_limit
            )
            return [beside, decide, up, Down(stack.down, chosen, acts, out, rows, shared.down, inner, ahead)]
        alone = workspace.take("shared expert", spec.hidden)[a:b]
        return [
            *self._shared_alone(a, b, image, alone),
            decide,
            up,
            Down(stack.down, chosen, acts, out, rows),
            Add(out, alone),
        ]

    def _many(
        self, images: Images, out: torch.Tensor, router: CudaRouter, stack: CudaExpertStack
    ) -> list[Launch]:
        """All rows of a step."""
        spec, rows, shared, workspace = self._spec, len(out), self._shared, self._memory.workspace
        assert stack.gate_up is not None
        assert stack.down is not None
        count, gate = router.spec.count, router.gate
        chosen = self._router(router, 0, rows)
        acts, parts = many_memory(workspace, rows, count, spec.hidden, stack.gate_up.rows)
        launches: list[Launch] = []
        beside, alone, width = None, workspace.take("shared expert", spec.hidden)[:rows], shared.gate_up.rows
        if shared_comes_along(shared.gate_up, shared.down, stack.gate_up):
            inner = workspace.once(("shared acts", 0, rows, width), lambda: DigitVectors(rows, width))
            beside = (shared.down, inner)
        for a, b, image in images:
            if beside is None:
                launches += self._shared_alone(a, b, image, alone[a:b])
            launches.append(Dense([gate], image, [chosen.logits[a:b]], b - a, late=True, stages=4))
        launches.append(
            ManyExperts(
                stack.gate_up, stack.down, chosen, [image for _, _, image in images], acts, out, parts, spec.limit,
                beside, shared.gate_up if beside else None, spec.shared_limit, ahead=self._memory.mix(self._next_mix),
            )
        )  # fmt: skip
        return launches if beside else [*launches, Add(out, alone)]

    def _shared_alone(self, a: int, b: int, image: Image, out: torch.Tensor) -> list[Launch]:
        shared, rows = self._shared, b - a
        width = shared.gate_up.rows
        inner = self._memory.workspace.take("shared inner", -(-width // 8) * 8)[a:b, :width]
        return [
            Dense([shared.gate_up], image, [inner], rows, limit=self._spec.shared_limit),
            Dense([shared.down], inner, [out], rows),
        ]

    def _plain(
        self, a: int, b: int, image: Image, out: torch.Tensor, router: CudaRouter, stack: CudaExpertStack
    ) -> list[Launch]:  # fmt: skip
        spec, rows, workspace, routing = self._spec, b - a, self._memory.workspace, router.spec
        logits = workspace.take("router logits", router.gate.rows)[a:b]
        ids = workspace.take("expert ids", routing.count, dtype=torch.int32)[a:b]
        weights = workspace.take("expert weights", routing.count)[a:b]
        beside = workspace.take("shared expert", spec.hidden)[a:b]
        acts = workspace.take("plain acts", routing.count, stack.plain[0].rows)[a:b]
        tokens = self._memory.tokens[a:b] if router.table is not None else None
        # The floats are the last of an image's forms.
        before = input_bytes(image.columns, rows, image.forms) - input_bytes(image.columns, rows, FLOATS)
        x = (address(image.data) + before, 4 * image.columns + 32)
        return [
            *self._shared_alone(a, b, image, beside),
            Dense([router.gate], image, [logits], rows),
            Route(logits, ids, weights, routing.scale, routing.normalize, router.bias, router.table, tokens),
            PlainExperts(stack.plain, x, ids, weights, beside, acts, out, spec.limit),
        ]


def _stack(lease: ExpertLease) -> CudaExpertStack:
    (stack,) = lease.in_order()
    assert isinstance(stack, CudaExpertStack)
    return stack

"""A layer's experts where the card has some of them, and the host's processors compute others at the same time."""

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DividedLease
from penstock.backend.cuda.deepseek_v4.batch import Launch, StepMemory, padded, run
from penstock.backend.cuda.dense import Dense
from penstock.backend.cuda.exchange import Exchange, Receive, Send, check
from penstock.backend.cuda.experts import Down, Up, shared_comes_along, up_forms
from penstock.backend.cuda.experts_many import ManyExperts, many_memory
from penstock.backend.cuda.inputs import FLOATS, DigitVectors, Image, few_rows, forms_of
from penstock.backend.cuda.launch import Turn, take_turn
from penstock.backend.cuda.placed import CudaExpert
from penstock.backend.cuda.prefill_experts import Groups, combine
from penstock.backend.cuda.prefill_products import MOST, HalfRows, Items, multiply, multiply_swiglu
from penstock.backend.cuda.routing import Router
from penstock.backend.cuda.slots import CudaExpertSlots
from penstock.backend.device import HostBackend, HostShare

if TYPE_CHECKING:
    from penstock.backend.cuda.deepseek_v4.experts import CudaRouter


class Divided:
    """A step of so many rows.  Before the host decides: the router, what the host needs to know, and the shared
    expert.  After it: the experts that have a place, and what the host has added up.

    images  of all rows, in the forms that `divided_forms` says
    ahead   what the kernel behind the experts reads
    """

    def __init__(
        self,
        spec: v4.ExpertsSpec,
        router: "CudaRouter",
        memory: StepMemory,
        lease: DividedLease,
        images: list[tuple[int, int, Image]],
        beside: HostBackend,
        ahead: torch.Tensor | None,
    ):
        assert isinstance(spec.shared, CudaExpert)
        assert isinstance(lease.slots, CudaExpertSlots)
        self._spec, self._shared, self._router, self._memory, self._lease = (
            spec,
            spec.shared,
            router,
            memory,
            lease,
        )
        self._rows, routing, workspace = images[-1][1], router.spec, memory.workspace
        self._ahead = ahead
        # With several rows the next layer would need more than the link brings meanwhile.
        self._next = router.following if self._rows == 1 and lease.guesses else None
        shape = (self._rows, routing.count, router.gate.rows, spec.hidden)
        self._exchange = workspace.once(("exchange", *shape), lambda: Exchange(*shape))
        sent = self._exchange
        share: HostShare = workspace.once(
            ("host share", *shape, spec.limit),
            lambda: beside.share(sent.x, sent.ids, sent.weights, sent.host_sum, spec.limit),
        )
        self._share, layer, pull = share, lease.at_hand, None
        self._turns = None if layer is None else share.turns(sent.meeting(lease.slots), layer)
        if layer is not None:
            pull = lease.slots.pull(torch.from_numpy(layer.sources.view(np.int64)).cuda())
        self._before: list[Launch] = []
        self._meanwhile: list[Launch] = []  # what the host need not wait for
        self._after: list[Launch] = [Receive(self._exchange, lease.slots, pull)]
        self._turn = Turn(self._answer, self._give_up, layer is not None)
        for a, b, image in images:
            self._add(a, b, image, lease.slots)
        out = workspace.take("experts", spec.hidden)[: self._rows]
        self._after.append(Add(out, self._exchange.sum))

    def _add(self, a: int, b: int, image: Image, slots: CudaExpertSlots) -> None:
        """Some rows."""
        spec, rows, shared, workspace = self._spec, b - a, self._shared, self._memory.workspace
        router, routing = self._router, self._router.spec
        logits = workspace.take("router logits", router.gate.rows)[a:b]
        tokens = self._memory.tokens[a:b] if router.table is not None else None
        chosen = Router(
            logits, routing.count, routing.scale, router.bias, router.table, tokens, routing.normalize
        )
        out = workspace.take("experts", spec.hidden)[a:b]
        gates, outputs, likely = [router.gate], [logits], None
        if self._next is not None:
            gates.append(self._next.gate)
            outputs.append(workspace.take("next router logits", router.gate.rows)[a:b])
            likely = Router(outputs[1], routing.count, routing.scale, self._next.bias)
        decide: list[Launch] = [
            Dense(gates, image, outputs, rows),
            Send(self._exchange, chosen, image, a, b == self._rows, likely),
        ]
        if shared_comes_along(shared.gate_up, shared.down, slots.gate_up):
            inner = workspace.once(
                ("shared acts", a, rows, shared.gate_up.rows), lambda: DigitVectors(rows, shared.gate_up.rows)
            )
            beside = Dense(
                [shared.gate_up], image, [inner.values], rows, digits=inner, limit=spec.shared_limit
            )
            self._before += decide
            self._meanwhile.append(beside)
            self._after += self._routed(slots, chosen, image, out, inner)
            return
        alone = workspace.take("shared expert", spec.hidden)[a:b]
        middle = workspace.take("shared inner", -(-shared.gate_up.rows // 8) * 8)[a:b, : shared.gate_up.rows]
        self._before += decide
        self._meanwhile += [
            Dense([shared.gate_up], image, [middle], rows, limit=spec.shared_limit),
            Dense([shared.down], middle, [alone], rows),
        ]
        self._after += [*self._routed(slots, chosen, image, out, None), Add(out, alone)]

    def _routed(
        self, slots: CudaExpertSlots, chosen: Router, image: Image, out: torch.Tensor, inner: DigitVectors | None
    ) -> list[Launch]:  # fmt: skip
        """The experts that have a place; with `inner`, the shared expert's second half too."""
        spec, rows, count, places = self._spec, image.rows, chosen.count, self._exchange.places
        acts, parts = many_memory(self._memory.workspace, rows, count, spec.hidden, slots.gate_up.rows)
        down = None if inner is None else self._shared.down
        if rows > few_rows():
            beside = None if inner is None else (self._shared.down, inner)
            return [
                ManyExperts(
                    slots.gate_up, slots.down, chosen, [image], acts, out, parts, spec.limit, beside,
                    places=places, ahead=self._ahead,
                )
            ]  # fmt: skip
        return [
            Up(slots.gate_up, chosen, image, acts, rows, limit=spec.limit, places=places),
            Down(slots.down, chosen, acts, out, rows, down, inner, self._ahead),
        ]

    def run(self) -> None:
        run(self._before)
        run(self._meanwhile)
        take_turn(self._turn)
        run(self._after)

    def _answer(self) -> None:
        exchange, live, lease = self._exchange, self._memory.live, self._lease
        turn = exchange.next()
        rows = live if padded(live) == self._rows else self._rows
        turns = self._turns
        idle = self._answer_in_python(rows) if turns is None else turns.take(turn, rows, lease, check)
        lease.waited(idle, *exchange.waits())
        if self._next is not None:
            lease.ahead(exchange.likely if turns is None else turns.likely)

    def _give_up(self) -> None:
        if self._turns is not None:
            self._turns.finish()
        self._exchange.give_up()
        self._lease.give_up()

    def _answer_in_python(self, rows: int) -> float:
        """Where experts may have to come from disk."""
        exchange, lease = self._exchange, self._lease
        begin = time.perf_counter()
        exchange.wait()
        idle, out = time.perf_counter() - begin, exchange.host_sum
        computed = self._share.run(lease.turn(exchange.ids[:rows]), rows)
        if computed and rows < self._rows:
            out[rows:] = out[rows - 1]  # rows behind the last repeat it
        assert isinstance(lease.slots, CudaExpertSlots)
        exchange.answer(lease.slots, lease.places, computed)
        return idle


def divided_forms(shared: CudaExpert, router: "CudaRouter", slots: CudaExpertSlots, rows: int) -> int:
    """The forms of the input that a step of so many rows takes."""
    kinds = [shared.gate_up.kind, router.gate.kind]
    return forms_of(kinds, rows) | up_forms(slots.gate_up.kind, rows) | FLOATS


def run_waves(
    lease: DividedLease, x: HalfRows, groups: Groups, limit: float, acts: HalfRows, terms: torch.Tensor,
    shared: torch.Tensor, out: torch.Tensor,
) -> None:  # fmt: skip
    """As `run_experts`, for experts that pass through the card."""
    slots = lease.slots
    assert isinstance(slots, CudaExpertSlots)
    counts = groups.counts.cpu().numpy().astype("i8")
    ends = [0, *(-(-counts // MOST)).cumsum().tolist()]  # tiles of all experts before each
    items = groups.items
    for first, last in lease.waves(counts):
        begin, end = ends[first], ends[last]
        if begin == end:
            continue
        # By way of pinned memory: from any other the host would wait until the card has come here, and the link rest.
        places = torch.from_numpy(lease.places).pin_memory().to("cuda", non_blocking=True)
        tiles = items.tiles[begin:end].clone()
        tiles[:, 0] = places[tiles[:, 0].long()]
        count = torch.full((1,), end - begin, dtype=torch.int32, device="cuda")
        multiply_swiglu(slots.gate_up, x, acts, limit, Items(tiles, count, items.gather))
        multiply([slots.down], acts, [terms], items=Items(tiles, count, None, items.factors))
    combine(terms, shared, groups, out)


class Add:
    """a += b"""

    def __init__(self, a: torch.Tensor, b: torch.Tensor):
        self._a, self._b = a, b

    def launch(self, overlap: bool = True) -> None:
        del overlap  # torch has no word for it
        self._a.add_(self._b)

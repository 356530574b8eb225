"""Experts that come and go on the card: the same answers as with all of them there, whoever computes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock import Engine
from penstock.backend.base import HostExpert
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cuda.memory import device_pages
from penstock.backend.cuda.placed import CudaExpertStack
from penstock.backend.cuda.slots import CudaExpertSlots, slot_sizes
from penstock.engine import planning
from penstock.errors import BudgetError
from penstock.storage.device import expert_infos
from penstock.storage.store import ready_expert
from penstock.storage.tiers import plan as tier_plan
from penstock.storage.tiers.division import Times
from penstock.storage.tiers.host import on_host
from penstock.storage.tiers.placement import Placement
from penstock.storage.tiers.plan import plan_for_tiers
from penstock.weights import types
from penstock.weights.opening import open_checkpoint
from penstock.weights.tensor import TensorInfo, Weight
from tests.gpu.test_long_steps import LENGTH, Logits, errors, fed, ids, narrow

FEWEST = 41  # slots: two halves of 16 for experts that pass, one besides, and eight that are free


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrow(tmp_path_factory.mktemp("tiers"))


@pytest.fixture(scope="module")
def whole(path: Path) -> Iterator[Engine]:
    with Engine(path, device="cuda", context=2048) as engine:
        assert engine.plan.mode == "vram"
        yield engine


Open = Callable[..., Engine]


@pytest.fixture
def tiered(path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """An engine with so many slots; the narrow model would fit in any card."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise BudgetError("pretended")

    def opened(slots: int, long_slots: int | None = None, **options: Any) -> Engine:
        def fewer(*given: Any, **named: Any) -> Any:
            plan, length = plan_for_tiers(*given, **named)
            assert plan.tiers is not None
            kinds = tuple(
                replace(kind, slots=slots, long_slots=long_slots or slots) for kind in plan.tiers.kinds
            )
            return replace(plan, tiers=replace(plan.tiers, kinds=kinds)), length

        monkeypatch.setattr(tier_plan, "in_memory", lambda _: False)
        monkeypatch.setattr(planning, "plan_for_device", refuse)
        monkeypatch.setattr(planning, "plan_for_tiers", fewer)
        engine = Engine(
            path, **{"device": "cuda", "context": 2048, "learn": "off", "memory": None, **options}
        )
        assert engine.plan.mode == "tiers"
        return engine

    return opened


def decoded(engine: Engine, count: int = 24) -> Logits:
    """Logits of a prompt of short steps, then of single tokens, which are launched, recorded and repeated."""
    return fed(engine, ids(LENGTH)[: 60 + count], [8, 20, 32, *[1] * count])


@pytest.mark.parametrize("together", [False, True])
def test_an_expert_that_is_brought_lies_as_one_that_is_loaded(path: Path, together: bool) -> None:
    checkpoint = open_checkpoint(path)
    infos = expert_infos(checkpoint, "blk.1")
    stack, slots = CudaExpertStack(infos, 6), CudaExpertSlots(infos[0], 8, device_pages(0))
    processors = CpuBackend(1)
    experts = []
    for number in range(8):
        weights = [Weight(info) for info in infos[number]]
        for part, weight in enumerate(weights):
            stack.place(part, number, weight.info, weight.raw)
        experts.append(on_host(ready_expert(processors, weights)))
    if together:
        slots.bring_all([7 - number for number in range(8)], experts)
    else:
        for number, expert in enumerate(experts):
            slots.bring(7 - number, expert)
    slots.join()
    torch.cuda.synchronize()
    assert stack.gate_up is not None
    assert stack.down is not None
    pair, single = slot_sizes(infos[0])
    for number in range(8):
        slot = 7 - number
        mine = slots.gate_up.data[slot * pair : (slot + 1) * pair]
        assert torch.equal(mine, stack.gate_up.data[number * pair : (number + 1) * pair])
        mine = slots.down.data[slot * single : (slot + 1) * single]
        assert torch.equal(mine, stack.down.data[number * single : (number + 1) * single])


class StoredExpert(HostExpert):
    """One that lies in arrays."""

    def __init__(self, arrays: Sequence[NDArray[np.uint8]]):
        self.arrays = arrays

    @property
    def parts(self) -> list[int]:
        return [array.ctypes.data for array in self.arrays]


def test_fp4_whose_scales_lie_apart_is_brought_as_it_is_loaded() -> None:
    rng, experts, nowhere = np.random.default_rng(0), 5, cast(Any, None)
    shapes = ((96, 512), (96, 512), (512, 96))
    infos = []
    for rows, columns in shapes:
        apart = TensorInfo("s", types.E8M0, (rows, columns // 32), nowhere, 0, rows * columns // 32)
        infos.append(TensorInfo("w", types.FP4_E2M1, (rows, columns), nowhere, 0, rows * columns // 2, apart))
    stack, slots = CudaExpertStack([infos] * experts, 6), CudaExpertSlots(infos, experts, device_pages(0))
    stored = []
    for number in range(experts):
        raws = [rng.integers(0, 256, info.nbytes, np.uint8) for info in infos]
        scales = [rng.integers(100, 130, info.nbytes // 16, np.uint8) for info in infos]
        for part, (info, raw, scale) in enumerate(zip(infos, raws, scales, strict=True)):
            stack.place(part, number, info, raw, scale)
        stored.append(StoredExpert([*raws, *scales]))
    slots.bring_all(list(range(experts)), stored)
    slots.join()
    torch.cuda.synchronize()
    assert stack.gate_up is not None
    assert stack.down is not None
    pair, single = slot_sizes(infos)
    assert torch.equal(slots.gate_up.data[: experts * pair], stack.gate_up.data)
    assert torch.equal(slots.down.data[: experts * single], stack.down.data)


def test_short_steps_are_those_of_a_card_with_all_experts(tiered: Open, whole: Engine) -> None:
    wanted = decoded(whole)
    for options in ({"exact": True}, {}):
        with tiered(FEWEST, **options) as engine:
            tiers = engine.storage.tiers
            assert tiers is not None
            tiers.experts.division.learn(
                Times(1e-4, (1e-4, 4e-4, 1.6e-3))
            )  # experts so small are not worth a share
            found = decoded(engine)
            stats = engine.stats()
        worst = errors(found, wanted).max()
        print(f"{options}: {worst:.1e} of the range; {stats}")
        assert worst < (1e-4 if options else 2e-3)
        assert stats["copied"] > 0
        assert (stats["on_host"] == 0) == bool(options)


def test_exact_bits_do_not_depend_on_what_the_tiers_hold(tiered: Open) -> None:
    found = []
    for slots, memory in ((FEWEST, None), (60, None), (80, None), (50, (2 << 30) + (4 << 20))):
        with tiered(slots, exact=True, memory=memory) as engine:
            found.append(decoded(engine))
            if slots == 60:
                assert engine.storage.tiers is not None
                engine.storage.tiers.experts.shrink()
                found.append(decoded(engine))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_a_graph_repeats_what_was_launched(tiered: Open) -> None:
    with tiered(FEWEST, exact=True) as engine:
        session = engine.session()
        session.feed(ids(40, seed=4))
        found = []
        for _ in range(5):
            found.append(session.feed([9]))
            session.rewind(1)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("memory", [None, (2 << 30) + (4 << 20)])
def test_long_steps_pass_through(tiered: Open, whole: Engine, memory: int | None) -> None:
    tokens = ids(LENGTH)
    wanted = fed(whole, tokens, [300, 399, 1])
    with tiered(70, 50, memory=memory, exact=True, prefill_chunk=512) as engine:
        found = fed(engine, tokens, [300, 399, 1])
        stats = engine.stats()
        again = fed(engine, tokens, [300, 399, 1])
    worst = errors(found, wanted).max()
    print(f"long steps: {worst:.1e} of the range; {stats}")
    assert worst < 1e-4
    np.testing.assert_array_equal(found, again)
    assert stats["passed"] > 0


def test_several_sessions_share_a_step(tiered: Open) -> None:
    prompts = [ids(20 + 7 * i, seed=i) for i in range(5)]

    def last(engine: Engine, together: bool) -> list[Logits]:
        sessions = [engine.session() for _ in prompts]
        for session, prompt in zip(sessions, prompts, strict=True):
            engine.feed([(session, prompt)])
        work = [(session, [5 + i]) for i, session in enumerate(sessions)]
        found = engine.feed(work) if together else [engine.feed([one])[0] for one in work]
        return [logits for logits in found if logits is not None]

    with tiered(FEWEST, exact=True) as engine:
        for one, beside in zip(last(engine, False), last(engine, True), strict=True):
            np.testing.assert_array_equal(one, beside)


def test_the_card_does_not_wait_for_a_host_that_has_given_up(
    tiered: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiered(FEWEST, exact=True) as engine:
        session = engine.session()
        session.feed(ids(40, seed=4))
        wanted = session.feed([9])
        for _ in range(3):  # launched, recorded, repeated
            session.rewind(1)
            np.testing.assert_array_equal(session.feed([9]), wanted)
        session.rewind(1)
        real, turns = Placement.turn, iter(range(100))

        def interrupted(placement: Placement, *given: Any) -> Any:
            if next(turns) == 2:
                raise KeyboardInterrupt
            return real(placement, *given)

        with monkeypatch.context() as context:
            context.setattr(Placement, "turn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.feed([9])
        other = engine.session()
        other.feed(ids(40, seed=4))
        np.testing.assert_array_equal(other.feed([9]), wanted)

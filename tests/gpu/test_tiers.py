"""Experts that come and go on the card: the same answers as with all of them there, whoever computes them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock import Engine
from penstock.backend.base import HostExpert
from penstock.backend.cuda.backend import CudaBackend
from penstock.backend.cuda.memory import device_pages
from penstock.backend.cuda.placed import CudaExpertStack
from penstock.backend.cuda.slots import COMING, CudaExpertSlots, slot_sizes
from penstock.engine import planning
from penstock.errors import BudgetError
from penstock.storage.device import expert_infos
from penstock.storage.tiers import plan as tier_plan
from penstock.storage.tiers.division import Times
from penstock.storage.tiers.host import MappedTier
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


class StoredExpert(HostExpert):
    """One that lies in pinned memory, at addresses that no copy would choose."""

    def __init__(self, arrays: Sequence[NDArray[np.uint8]], skip: int):
        starts = list(accumulate((array.size + skip for array in arrays), initial=skip))
        self._memory = torch.empty(starts[-1], dtype=torch.uint8).pin_memory().numpy()
        self._parts = list[int]()
        for start, array in zip(starts, arrays, strict=False):
            self._memory[start : start + array.size] = array.ravel()
            self._parts.append(self._memory[start:].ctypes.data)

    @property
    def parts(self) -> list[int]:
        return self._parts


def bring(slots: CudaExpertSlots, way: str, experts: Sequence[HostExpert]) -> None:
    """The first expert to the last slot, and so on."""
    last = len(experts) - 1
    if way == "one by one":
        for number, expert in enumerate(experts):
            slots.bring(last - number, expert)
    elif way == "together":
        slots.bring_all([last - number for number in range(len(experts))], experts)
    else:  # besides another that is not asked for
        sources = np.array([experts[0].parts, *(expert.parts for expert in experts)], np.uint64)
        places = [-1, *((last - number) | COMING for number in range(len(experts)))]
        pull = slots.pull(torch.from_numpy(sources.view(np.int64)).cuda())
        pull.launch(torch.tensor(places, dtype=torch.int32, device="cuda"))
    slots.join()
    torch.cuda.synchronize()


def check(slots: CudaExpertSlots, stack: CudaExpertStack, sizes: tuple[int, int], count: int) -> None:
    """Every expert lies in its slot as `stack` has it."""
    assert stack.gate_up is not None
    assert stack.down is not None
    for found, wanted, size in zip(
        (slots.gate_up, slots.down), (stack.gate_up, stack.down), sizes, strict=True
    ):
        mine = found.data[: count * size].view(count, size)
        assert torch.equal(mine.flip(0), wanted.data[: count * size].view(count, size))


WAYS = ["one by one", "together", "by itself"]


@pytest.mark.parametrize("skip", [0, 16, 5])
@pytest.mark.parametrize("way", WAYS)
def test_an_expert_that_is_brought_lies_as_one_that_is_loaded(path: Path, way: str, skip: int) -> None:
    checkpoint, count = open_checkpoint(path), 8
    infos = expert_infos(checkpoint, "blk.1")
    stack, slots = CudaExpertStack(infos, 6), CudaExpertSlots(infos[0], count, device_pages(0))
    experts = []
    for number in range(count):
        weights = [Weight(info) for info in infos[number]]
        for part, weight in enumerate(weights):
            stack.place(part, number, weight.info, weight.raw)
        experts.append(StoredExpert([weight.raw for weight in weights], skip))
    bring(slots, way, experts)
    check(slots, stack, slot_sizes(infos[0]), count)


# Rows of whole cells, and of some that are cut off: 13 and 3 bytes of scales a row
@pytest.mark.parametrize("hidden", [512, 416])
@pytest.mark.parametrize("way", WAYS)
def test_fp4_whose_scales_lie_apart_is_brought_as_it_is_loaded(way: str, hidden: int) -> None:
    rng, count, nowhere = np.random.default_rng(0), 5, cast(Any, None)
    shapes = ((96, hidden), (96, hidden), (hidden, 96))
    infos = []
    for rows, columns in shapes:
        apart = TensorInfo("s", types.E8M0, (rows, columns // 32), nowhere, 0, rows * columns // 32)
        infos.append(TensorInfo("w", types.FP4_E2M1, (rows, columns), nowhere, 0, rows * columns // 2, apart))
    stack, slots = CudaExpertStack([infos] * count, 6), CudaExpertSlots(infos, count, device_pages(0))
    stored = []
    for number in range(count):
        raws = [rng.integers(0, 256, info.nbytes, np.uint8) for info in infos]
        scales = [rng.integers(100, 130, info.nbytes // 16, np.uint8) for info in infos]
        for part, (info, raw, scale) in enumerate(zip(infos, raws, scales, strict=True)):
            stack.place(part, number, info, raw, scale)
        stored.append(StoredExpert([*raws, *scales], 3))
    bring(slots, way, stored)
    check(slots, stack, slot_sizes(infos), count)


@pytest.mark.parametrize("reaches", [True, False])
def test_short_steps_are_those_of_a_card_with_all_experts(
    tiered: Open, whole: Engine, monkeypatch: pytest.MonkeyPatch, reaches: bool
) -> None:
    """reaches: whether the card brings experts by itself, and native code decides"""
    wanted = decoded(whole)
    monkeypatch.setattr(CudaBackend, "reaches_host", reaches)
    for options in ({"exact": True}, {}):
        with tiered(FEWEST, **options) as engine:
            tiers = engine.storage.tiers
            assert tiers is not None
            assert isinstance(tiers.experts.host, MappedTier)
            assert tiers.experts.host.pinned == reaches
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
        real, turns = Placement.begin_turn, iter(range(100))

        def interrupted(placement: Placement, block: int, rows: int) -> None:
            if next(turns) == 2:
                raise KeyboardInterrupt
            real(placement, block, rows)

        with monkeypatch.context() as context:
            context.setattr(Placement, "begin_turn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.feed([9])
        other = engine.session()
        other.feed(ids(40, seed=4))
        np.testing.assert_array_equal(other.feed([9]), wanted)

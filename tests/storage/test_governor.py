"""The size of the expert pool on machines that are made up: it finds the knee, stays there, and makes way."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.storage.governor import Governor, Sample

GIB = 1 << 30
MINUTE = 60


class FakeMachine:
    """Mapped weights of `hot` bytes are read all the time and count as available, as page cache does.  When the pool
    pushes them out they come back as page faults, and tasks wait.  The kernel renews its average every 2 s."""

    def __init__(self, total: int, hot: int, others: int):
        self.total, self.hot, self.others = total, hot, others
        self.stalled = 0.0
        self.pool = 0

    @property
    def knee(self) -> int:
        return self.total - self.hot - self.others

    def sample(self, second: int) -> Sample:
        missing = min(1.0, max(0, self.pool - self.knee) / self.hot)  # share of the hot pages
        if second % 2 == 0:
            old = math.exp(-2 / 10)
            self.stalled = old * self.stalled + (1 - old) * 100 * math.sqrt(missing)
        available = max(0, self.total - self.others - self.pool)
        return Sample(available, round(self.stalled, 2), 20_000 * missing, 0.0, self.pool)


def live(governor: Governor, machine: FakeMachine, seconds: int, begin: int = 0) -> Iterator[int]:
    """The pool's size, second by second.  It fills at 2 GiB/s and gives way at once."""
    for second in range(begin, begin + seconds):
        advised = governor.advise(machine.sample(second), float(second))
        machine.pool = min(advised, machine.pool + 2 * GIB)
        yield advised


def calm(size: int, available: int = 64 * GIB) -> Sample:
    return Sample(available, 0.0, 0.0, 0.0, size)


SHORT = {
    "available": Sample(100 << 20, 0.0, 0.0, 0.0, 8 * GIB),
    "stalled": Sample(64 * GIB, 20.0, 0.0, 0.0, 8 * GIB),
    "major faults": Sample(64 * GIB, 0.0, 5000.0, 0.0, 8 * GIB),
    "swap-ins": Sample(64 * GIB, 0.0, 0.0, 500.0, 8 * GIB),
}


@pytest.mark.parametrize("start", [2 * GIB, 12 * GIB, 30 * GIB])
def test_it_settles_at_the_knee(start: int) -> None:
    machine = FakeMachine(32 * GIB, hot=8 * GIB, others=2 * GIB)
    governor = Governor(start, lowest=GIB, highest=30 * GIB)
    for _ in live(governor, machine, 10 * MINUTE):
        pass
    hour = list(live(governor, machine, 60 * MINUTE, begin=10 * MINUTE))
    # Every few minutes a larger size is tried for some seconds.
    assert sum(size > machine.knee for size in hour) < 0.03 * len(hour)
    assert min(hour) > 0.8 * machine.knee
    assert sum(hour) / len(hour) > 0.88 * machine.knee
    changes = sum(a != b for a, b in pairwise(hour))
    assert changes <= 4 * 60 // 5 + 4


def test_another_process_takes_memory_and_gives_it_back() -> None:
    machine = FakeMachine(32 * GIB, hot=8 * GIB, others=2 * GIB)
    governor = Governor(20 * GIB, lowest=GIB, highest=30 * GIB)
    for _ in live(governor, machine, 10 * MINUTE):
        pass
    before = governor.size

    machine.others += 4 * GIB
    sizes = list(live(governor, machine, 4 * MINUTE, begin=10 * MINUTE))
    assert sizes[20] <= machine.knee
    assert all(0.75 * machine.knee < size <= machine.knee for size in sizes[20:])

    machine.others -= 4 * GIB
    sizes = list(live(governor, machine, 12 * MINUTE, begin=14 * MINUTE))
    assert sizes[0] == sizes[30]  # not at once: what was too much is remembered
    assert max(sizes[-MINUTE:]) > 0.95 * before


def test_a_machine_without_a_knee_is_filled_up_to_the_margin() -> None:
    machine = FakeMachine(32 * GIB, hot=1, others=2 * GIB)
    governor = Governor(4 * GIB, lowest=GIB, highest=100 * GIB, margin=GIB)
    sizes = list(live(governor, machine, 20 * MINUTE))
    assert max(sizes) == sizes[-1]
    assert 25 * GIB < sizes[-1] < 28 * GIB


@pytest.mark.parametrize("sign", SHORT)
def test_every_sign_of_shortage_shrinks_by_an_eighth(sign: str) -> None:
    governor = Governor(8 * GIB, lowest=GIB, highest=9 * GIB)
    assert governor.advise(calm(8 * GIB), 0.0) == 8 * GIB
    assert governor.advise(SHORT[sign], 1.0) == 7 * GIB
    assert governor.advise(SHORT[sign]._replace(size=7 * GIB), 2.9) == 7 * GIB
    assert governor.advise(SHORT[sign]._replace(size=7 * GIB), 3.0) == 7 * GIB - 7 * GIB // 8


def test_the_echo_of_a_shortage_is_not_answered() -> None:
    governor = Governor(8 * GIB, lowest=GIB, highest=9 * GIB)
    for second in range(
        30
    ):  # stalls ended with the first answer; the average needs half a minute to forget them
        stalled = 40.0 * math.exp(-second / 10)
        governor.advise(Sample(64 * GIB, stalled, 0.0, 0.0, governor.size), float(second))
    assert governor.size == 7 * GIB


def test_nothing_new_is_asked_while_the_pool_still_gives_way() -> None:
    governor = Governor(8 * GIB, lowest=GIB, highest=9 * GIB)
    governor.advise(SHORT["available"], 0.0)
    advised = governor.advise(SHORT["available"]._replace(size=7 * GIB), 10.0)
    assert advised == 7 * GIB - 7 * GIB // 8
    assert governor.advise(SHORT["available"]._replace(size=7 * GIB), 20.0) == advised
    assert governor.advise(SHORT["available"]._replace(size=8 * GIB), 30.0) == advised


def test_a_pool_that_is_still_filling_shrinks_from_what_it_holds() -> None:
    governor = Governor(8 * GIB, lowest=GIB, highest=9 * GIB)
    assert governor.advise(SHORT["available"]._replace(size=4 * GIB), 0.0) == 4 * GIB - GIB // 2


def test_it_grows_slowly_and_after_quiet_only() -> None:
    governor = Governor(8 * GIB, lowest=GIB, highest=9 * GIB)
    sizes = {second: governor.advise(calm(governor.size), float(second)) for second in range(100)}
    assert sizes[9] == 8 * GIB
    assert sizes[10] == sizes[19] == 8 * GIB + GIB // 2
    assert sizes[20] == sizes[99] == 9 * GIB


def test_what_the_pool_was_promised_is_no_room_to_grow() -> None:
    enough = 2 * GIB + GIB // 2 + 1  # twice the margin and the growth
    for size, available, grows in (
        (8 * GIB, enough, True),
        (8 * GIB, enough - 1, False),
        (7 * GIB, enough + GIB, True),
        (7 * GIB, enough, False),
    ):
        governor = Governor(8 * GIB, lowest=GIB, highest=20 * GIB, margin=GIB)
        governor.advise(calm(size, available), 0.0)
        assert (governor.advise(calm(size, available), 10.0) > 8 * GIB) is grows


def test_a_size_that_was_too_large_is_tried_again_after_five_minutes() -> None:
    governor = Governor(8 * GIB, lowest=GIB, highest=20 * GIB)
    governor.advise(SHORT["stalled"], 0.0)
    sizes = [governor.advise(calm(governor.size), float(second)) for second in range(1, 330)]
    assert max(sizes[:298]) == 8 * GIB - GIB // 2
    assert sizes[-1] > 8 * GIB


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 15),
            st.integers(0, 64 * GIB),
            st.floats(0, 100),
            st.sampled_from([0.0, 0.0, 1e4]),
            st.sampled_from([0.0, 0.0, 1e3]),
            st.floats(0, 1),
        ),
        max_size=60,
    )
)
def test_limits_and_paces_hold_whatever_happens(
    events: list[tuple[float, int, float, float, float, float]],
) -> None:
    governor = Governor(8 * GIB, lowest=2 * GIB, highest=20 * GIB)
    now, shrunk, grown = 0.0, -math.inf, -math.inf
    for pause, available, stalled, faults, swaps, filled in events:
        now += pause
        before, held = governor.size, int(filled * governor.size)
        size = governor.advise(Sample(available, stalled, faults, swaps, held), now)
        assert 2 * GIB <= size <= 20 * GIB
        if size < before:
            assert now - shrunk >= 2
            assert size >= min(before, held) * 7 // 8
            shrunk = now
        if size > before:
            assert now - grown >= 10
            assert size <= before * 17 / 16
            assert available > GIB
            grown = now


@pytest.mark.parametrize("sizes", [(1, 2, 3), (4, 2, 3), (2, 0, 3)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(OptionError, match="expert pool"):
        Governor(*sizes)

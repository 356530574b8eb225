"""PrefillProgress beside decoding: at most as long as the decoding itself."""

import pytest

from penstock.engine.pace import FIRST, SMALLEST, Pace


def settle(pace: Pace, decoding: float, fixed: float, by_token: float, chunk: int = 512) -> float:
    """Seconds of a step that a machine of such a speed takes in the end."""
    pace.decoded(decoding)
    seconds = 0.0
    for _ in range(60):
        tokens = pace.room(chunk)
        seconds = decoding + fixed + tokens * by_token
        pace.read(tokens, seconds)
    return seconds


@pytest.mark.parametrize(
    ("fixed", "by_token"), [(0.0, 0.001), (0.005, 0.0005), (0.0, 0.0001), (0.002, 0.003)]
)
def test_the_pace_is_at_most_halved(fixed: float, by_token: float) -> None:
    assert settle(Pace(), 0.02, fixed, by_token) == pytest.approx(0.04, rel=0.15)


def test_bounds() -> None:
    slow, fast = Pace(), Pace()
    settle(slow, 0.01, 0.0, 1.0)
    assert slow.room(512) == SMALLEST
    settle(fast, 0.01, 0.0, 1e-9)
    assert fast.room(512) == 512
    assert fast.room(3) == 3


def test_what_says_nothing_changes_nothing() -> None:
    pace = Pace()
    pace.read(FIRST, 1.0)  # nothing to compare with
    pace.decoded(0.01)
    pace.read(FIRST - 5, 5.0)  # the prompt had no more
    assert pace.room(512) == FIRST

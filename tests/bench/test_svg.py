"""Axes whose labels can be read, and pictures that are what their names say."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.svg import LETTER, check_picture, labels
from penstock.errors import OptionError

AXES = st.lists(st.tuples(st.floats(0, 600), st.integers(0, 10**6).map(lambda n: f"{n:,}")), max_size=20).map(
    sorted
)


def boxes(found: list[str]) -> list[tuple[float, float, str]]:
    """(left edge, right edge, label)"""
    parts = [re.fullmatch(r'<text x="([\d.]+)" .*>(.*)</text>', each) for each in found]
    return [
        (float(p[1]) - LETTER * len(p[2]) / 2, float(p[1]) + LETTER * len(p[2]) / 2, p[2]) for p in parts if p
    ]


@given(AXES)
def test_labels_never_touch(places: list[tuple[float, str]]) -> None:
    shown = boxes(labels(places, 0.0))
    assert all(before[1] < after[0] for before, after in pairwise(shown))
    assert bool(shown) == bool(places)


def test_the_ends_of_an_axis_are_named() -> None:
    places = [(10.0 * number, f"{number}k") for number in range(20)]
    shown = [label for _, _, label in boxes(labels(places, 0.0))]
    assert (shown[0], shown[-1]) == ("0k", "19k")
    assert 4 < len(shown) < 20


def test_wide_second_lines_count() -> None:
    places = [(0.0, "a"), (20.0, "b"), (200.0, "c")]
    assert len(labels(places, 0.0)) == 3
    shown = boxes(labels(places, 0.0, ["100.0%"] * 3))
    assert [label for _, _, label in shown] == ["a", "c", "100.0%", "100.0%"]


@pytest.mark.parametrize("name", ["speed.png", "speed", "speed.svg.pdf"])
def test_a_picture_that_would_not_be_what_its_name_says(name: str) -> None:
    with pytest.raises(
        OptionError, match=rf"--plot {name}: pictures are SVG, expected a name that ends in \.svg"
    ):
        check_picture(Path(name), "--plot")
    check_picture(Path("speed.SVG"), "--plot")

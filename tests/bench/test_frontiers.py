"""Context lengths as a person writes them."""

import pytest

from penstock.bench.frontiers import fit_frontiers, parse_frontiers
from penstock.errors import OptionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", [512]),
        ("8k, 512,2K", [512, 2048, 8192]),
        ("1m,1024,1k", [1024, 1 << 20]),
    ],
)
def test_lengths(text: str, expected: list[int]) -> None:
    assert parse_frontiers(text) == expected


@pytest.mark.parametrize("text", ["", "k", "0", "-5", "512,,1k", "1.5k", "many", "2g"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(OptionError, match="expected lengths such as 512,2k,8k"):
        parse_frontiers(text)


def test_a_short_context_takes_the_longest_that_fits() -> None:
    assert fit_frontiers([512, 2048], 2080, 32) == ([512, 2048], None)
    fitted, note = fit_frontiers([512, 2048, 8192], 1000, 40)
    assert fitted == [512, 960]
    assert note is not None
    assert "1,000" in note


def test_no_room_to_decode() -> None:
    with pytest.raises(OptionError, match="the context holds 16 tokens"):
        fit_frontiers([512], 16, 16)

"""Pieces of prompts follow from how long steps took."""

from collections.abc import Callable

import pytest

from penstock.cluster.pieces import PromptPieces

LEAST = 64


def learned(
    seconds: Callable[[int], float], prompts: int = 3, tokens: int = 2048, most: int = 512
) -> PromptPieces:
    """After some prompts on two stages whose steps take so long."""
    pieces = PromptPieces(LEAST)
    for _ in range(prompts):
        left = tokens
        while left:
            size = min(left, pieces.size(tokens, 2, most))
            pieces.took(size, seconds(size))
            left -= size
    return pieces


def whole(size: int, seconds: Callable[[int], float], tokens: int = 2048) -> float:
    """Seconds of a prompt on two stages."""
    return (-(-tokens // size) + 1) * seconds(size)


@pytest.mark.parametrize("weights", [0.0, 20.0, 61.0, 123.0, 400.0])
@pytest.mark.parametrize("each", [1e-4, 0.02])
def test_pieces_are_near_the_best(weights: float, each: float) -> None:
    def seconds(rows: int) -> float:
        return each * (weights + rows)

    size = learned(seconds).size(2048, 2, 512)
    best = min(whole(rows, seconds) for rows in range(LEAST, 513))
    assert whole(size, seconds) < 1.04 * best


def test_what_weights_take_is_where_the_line_of_times_begins() -> None:
    assert learned(lambda rows: 0.02 * (61 + rows)).weights() == pytest.approx(61)


def test_the_first_prompt_has_pieces_of_two_sizes() -> None:
    pieces = PromptPieces(LEAST)
    assert pieces.size(2048, 2, 512) == 256
    pieces.took(256, 1.0)
    assert pieces.size(2048, 2, 512) == 512
    assert pieces.weights() is None


def test_a_disturbed_step_is_not_remembered_for_ever() -> None:
    def seconds(rows: int) -> float:
        return 0.02 * (61 + rows)

    pieces = learned(seconds)
    for rows in (341, 512):
        pieces.took(rows, 10 * seconds(rows))
    for _ in range(200):
        size = pieces.size(2048, 2, 512)
        pieces.took(size, seconds(size))
    best = min(whole(size, seconds) for size in range(LEAST, 513))
    assert whole(pieces.size(2048, 2, 512), seconds) < 1.1 * best


@pytest.mark.parametrize("disturbed", [2.0, 10.0])
def test_a_large_first_step_that_was_disturbed_is_not_believed(disturbed: float) -> None:
    """It would say that weights take no time, and small pieces, once chosen, would never show otherwise."""
    pieces = PromptPieces(LEAST)
    for rows, times in ((256, 1.0), (512, disturbed)):
        pieces.took(rows, times * 0.02 * (61 + rows))
    assert pieces.size(2048, 2, 512) == 512


def test_steps_of_few_rows_say_nothing() -> None:
    """They use some of the experts only."""
    pieces = PromptPieces(LEAST)
    for rows in range(1, LEAST):
        pieces.took(rows, rows)
    assert pieces.size(2048, 2, 512) == 256


@pytest.mark.parametrize("tokens", [0, 1, 20, 64, 128, 512, 100_000])
@pytest.mark.parametrize("stages", [2, 3, 16])
@pytest.mark.parametrize("weights", [0.0, 61.0, 1e6])
def test_no_piece_is_larger_than_a_step_or_the_prompt(tokens: int, stages: int, weights: float) -> None:
    """No tokens: where nobody reads a prompt."""
    size = learned(lambda rows: 0.02 * (weights + rows)).size(tokens, stages, 512)
    assert 1 <= size <= max(1, min(tokens, 512))


def test_larger_pieces_are_preferred_where_that_costs_next_to_nothing() -> None:
    """With weights as long as 94 rows four to six pieces take within one per cent of each other."""
    pieces = learned(lambda rows: 0.01 * (94 + rows))
    assert pieces.weights() == pytest.approx(94)
    assert pieces.size(2048, 2, 512) == 512
    assert pieces.size(2048, 2, 1024) == 683  # three of them, and two would take a tenth longer

"""Tokens from logits on the card: greedy, and the draw that numpy makes from the same logits and chance."""

import numpy as np
import torch

from penstock.backend.cuda.sample import Sample


def draw(
    logits: torch.Tensor, temperatures: list[float], chances: list[float], mask: torch.Tensor | None = None
) -> list[int]:
    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device="cuda")
    t = torch.tensor(temperatures, device="cuda")
    c = torch.tensor(chances, dtype=torch.float64, device="cuda")
    Sample(logits, t, c, tokens, mask).launch()
    result: list[int] = tokens.tolist()
    return result


def test_greedy_takes_the_best_and_of_equals_the_first() -> None:
    logits = torch.randn(3, 129280, device="cuda")
    logits[0, [5, 99999]] = 50.0
    logits[2, 17] = float("nan")
    assert draw(logits, [0, 0, 0], [0, 0, 0]) == [5, int(logits[1].argmax()), -1]


def test_draws_are_those_of_numpy() -> None:
    logits = torch.randn(8, 129280, generator=torch.Generator().manual_seed(1)).mul(3).cuda()
    rng = np.random.default_rng(0)
    temperatures, chances = [0.5, 0.7, 1, 1, 1.3, 2, 1, 1], [*rng.random(6).tolist(), 0.0, 0.999]
    got = draw(logits, temperatures, chances)
    x = logits.cpu().numpy()
    for row in range(8):
        inverse = np.float32(1) / np.float32(temperatures[row])
        weights = np.exp(((x[row] - x[row].max()) * inverse).astype(np.float64))
        sums = np.cumsum(weights)
        wanted = int(np.searchsorted(sums, chances[row] * sums[-1], side="right"))
        assert got[row] == min(wanted, len(sums) - 1), f"row {row}"


def test_a_mask_forbids() -> None:
    logits = torch.randn(2, 1000, device="cuda")
    mask = torch.zeros(2, 32, dtype=torch.int32, device="cuda")
    mask[0, 3] = 1 << 5
    mask[1, 0] = 0b11
    got = draw(logits, [1.0, 0], [0.9, 0], mask)
    assert got == [101, int(logits[1, :2].argmax())]

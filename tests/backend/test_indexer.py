"""The indexer's choice among many compressed rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.backend.deepseek_v4 import CompressorSpec, IndexerSpec
from tests.backend.bare_attention import bare, stored
from tests.backend.helpers import (
    KV_DTYPES,
    Weights,
    assert_close,
    assert_same_bits,
    random,
)
from tests.backend.layers import (
    Block,
)
from tests.spec.indexer import select


class Choice:
    """A token after many compressed rows that are written by hand.  It gets the mean of the chosen ones and of its
    own row, which is zero."""

    def __init__(self, folder: Path, heads: int, dim: int, topk: int):
        self.topk, rank = topk, 4
        weights = Weights(folder)
        base = bare(weights, window=1)
        nothing = torch.zeros(16, 16)

        def compressor(width: int) -> CompressorSpec:
            zeros = weights.of(nothing[:width])
            return CompressorSpec(
                zeros, zeros, np.zeros((4, width), np.float32), np.ones(width, np.float32), base.frequencies
            )

        # Channels of the input: the query's rank, and the gates behind it.
        self.q_b = random(heads * dim, rank, seed=1)
        self.spec = replace(
            base,
            q_a=weights.of(torch.eye(16)[:rank]),
            kv=weights.of(nothing),
            q_b=weights.of(torch.zeros(16, rank)),
            q_norm=np.ones(rank, np.float32),
            compressor=compressor(16),
            indexer=IndexerSpec(
                q_b=weights.of(self.q_b),
                gates=weights.of(torch.eye(16)[rank : rank + heads]),
                compressor=compressor(dim),
                heads=heads,
                dim=dim,
                topk=topk,
            ),
        )

    def chosen(self, rows: Tensor, x: Tensor, kv_dtype: str = "f32", threads: int = 1) -> list[Tensor]:
        """For tokens x [T, 16], each at the end of a sequence of its own that sees all of rows [R, dim]: the chosen
        rows' codes, summed; the code of row r is its number in base 16."""
        block = Block(self.spec, kv_dtype, threads, context=4 * len(rows) + 4)
        codes = code(torch.arange(len(rows)))
        work = []
        for own in x:
            fed = block.sequence(own.repeat(4 * len(rows) + 1, 1))
            fed.position = 4 * len(rows)
            for number, values in ((2, codes), (4, rows)):
                block.pool.write(fed.slot, number, 0, stored(values, kv_dtype))
            work.append((fed, 1))
        count = min(self.topk, len(rows))
        return [found[0] * (count + 1) for found in block.run(work)]


def code(rows: Tensor) -> Tensor:
    """Sixteen small numbers that tell rows apart, also in sums of a few hundred."""
    mixed = rows[:, None] * torch.tensor([1, *(7919 * n + 1 for n in range(1, 16))])
    return ((mixed + mixed // 16 + mixed // 256 + mixed // 4096) % 16).float()


def assert_chosen(found: Tensor, rows: list[int]) -> None:
    assert_close(found[None], code(torch.tensor(rows)).sum(0)[None].double(), 1e-5)


def test_ties_go_to_the_lower_row(tmp_path: Path) -> None:
    choice = Choice(tmp_path, heads=2, dim=8, topk=10)
    x = torch.zeros(2, 16)
    x[:, 0], x[0, 4:6], x[1, 4:6] = 1, 1.0, -1.0  # gates of one, and of minus one
    q = choice.q_b[:, 0].view(2, 8) * 2  # the norm of a vector with one number of four
    rows = torch.zeros(20_000, 8)
    rows[[19_999, 7, 12_000]] = q.sum(0)
    hits = torch.relu(q @ q.sum(0)).sum()
    assert hits > 0
    for threads in (1, 3):
        best, worst = choice.chosen(rows, x, threads=threads)
        assert_chosen(best, [0, 1, 2, 3, 4, 5, 6, 7, 12_000, 19_999])
        # A row whose hits are all closed scores 0, more than a negative one; −0 and 0 are the same score.
        assert_chosen(worst, [0, 1, 2, 3, 4, 5, 6, 8, 9, 10])


def test_scores_of_nan_lose(tmp_path: Path) -> None:
    choice = Choice(tmp_path, heads=1, dim=4, topk=5)
    x = torch.zeros(1, 16)
    x[0, 0], x[0, 4] = 1, 1
    rows = (choice.q_b[:, 0]).repeat(6, 1)
    rows[2] = torch.nan
    (found,) = choice.chosen(rows, x)
    assert_chosen(found, [0, 1, 3, 4, 5])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_choice_from_more_rows_than_fit_the_buffer(tmp_path: Path, kv_dtype: str) -> None:
    choice = Choice(tmp_path, heads=4, dim=16, topk=512)
    rows = random(30_000, 16, seed=2).to(KV_DTYPES[kv_dtype])
    x = random(2, 16).abs()
    low = x[:, :4].double()
    low = low * torch.rsqrt(low.square().mean(1, keepdim=True) + 1e-6)
    q = (low @ choice.q_b.double().T).view(2, 4, 16)
    seen = torch.ones(2, 30_000, dtype=torch.bool)
    expected = select(q, x[:, 4:8].double(), rows.double(), seen, 512)
    for threads in (1, 2, 5):  # two threads share out tokens, five divide the rows of each
        found = choice.chosen(rows, x, kv_dtype, threads)
        for mine, chosen in zip(found, expected, strict=True):
            assert_chosen(mine, chosen.nonzero()[:, 0].tolist())
        (one,) = choice.chosen(rows, x[1:], kv_dtype, threads)
        assert_same_bits(one, found[1])

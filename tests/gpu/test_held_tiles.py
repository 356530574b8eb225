"""How rows that go to experts on a card are cut into tiles, worked out on the host."""

import numpy as np
import pytest

pytest.importorskip("torch")

from penstock.backend.cuda.held_stack import tiles_of


@pytest.mark.parametrize("most", [1, 3, 128])
@pytest.mark.parametrize("items", [0, 1, 2, 40, 700])
def test_tiles_have_every_item_once_and_one_expert_each(items: int, most: int) -> None:
    numbers = np.sort(np.random.default_rng(items).integers(0, 9, items))
    tiles = tiles_of(numbers, most)
    assert tiles.dtype == np.int32
    assert tiles.shape == (len(tiles), 3)
    covered = [(item, expert) for expert, first, count in tiles for item in range(first, first + count)]
    assert covered == list(enumerate(numbers))
    assert all(0 < count <= most for _, _, count in tiles)


def test_tiles_of_an_expert_are_as_even_as_can_be() -> None:
    tiles = tiles_of(np.zeros(130, np.int64), 128)
    assert tiles.tolist() == [[0, 0, 65], [0, 65, 65]]

"""Every shape of a launch fits every card that kernels are made for.  Needs no GPU."""

import pytest

from tests.gpu.published import MULTIPROCESSORS, ROWS, a_card, standing_in, step


@pytest.mark.parametrize("capability", list(MULTIPROCESSORS), ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("rows", ROWS)
def test_there_is_a_shape_for_the_published_model(capability: tuple[int, int], rows: int) -> None:
    with standing_in(a_card(capability)) as compiled:
        assert step(rows)
    sources = {each.source for each in compiled}
    assert {"dense.cu", "attention.cu", "hyper.cu", "indexer.cu", "sample.cu", "state.cu"} <= sources
    assert sources & {"experts_up.cu", "experts_many.cu"}

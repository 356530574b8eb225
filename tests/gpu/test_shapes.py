"""Every shape of a launch fits every card that kernels are made for; others are refused.  Needs no GPU."""

from typing import Any, cast

import pytest
import torch

from penstock.backend.cuda.backend import CudaBackend
from penstock.backend.cuda.device import CudaError, pretended
from tests.gpu.published import MULTIPROCESSORS, ROWS, a_card, prompt, standing_in, step


@pytest.mark.parametrize("capability", list(MULTIPROCESSORS), ids=lambda c: f"{c[0]}.{c[1]}")
@pytest.mark.parametrize("rows", ROWS)
def test_there_is_a_shape_for_the_published_model(capability: tuple[int, int], rows: int) -> None:
    with standing_in(a_card(capability)) as compiled:
        assert step(rows)
    sources = {each.source for each in compiled}
    assert {"dense.cu", "attention.cu", "hyper.cu", "indexer.cu", "sample.cu", "state.cu"} <= sources
    assert sources & {"experts_up.cu", "experts_many.cu"}


@pytest.mark.parametrize("capability", list(MULTIPROCESSORS), ids=lambda c: f"{c[0]}.{c[1]}")
def test_there_is_a_shape_for_long_steps(capability: tuple[int, int]) -> None:
    with standing_in(a_card(capability)) as compiled:
        prompt()
    assert {"prefill_product.cu", "prefill_attention.cu", "prefill_hyper.cu"} <= {
        each.source for each in compiled
    }


def test_older_cards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    nobody = cast(Any, None)
    old = a_card((8, 0))._replace(capability=(7, 5))
    with standing_in(old), pytest.raises(CudaError, match=r"compute capability 7\.5; the kernels need 8\.0"):
        CudaBackend(0, nobody, nobody)


def test_a_card_can_be_treated_as_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CUDA_AS", "8.6")
    assert pretended() == (8, 6)
    monkeypatch.setenv("PENSTOCK_CUDA_AS", "Turing")
    with pytest.raises(CudaError, match=r"it may be 8\.0, 8\.6"):
        pretended()

"""Attention state costs what the architecture says, and no more."""

import pytest
import torch

from penstock.kv.state import SequenceMemory, StateLayout
from tests.published import FLASH


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float16, 6880), (torch.float32, 13760)])
def test_bytes_per_token_of_the_published_model(dtype: torch.dtype, expected: int) -> None:
    state = SequenceMemory(StateLayout(FLASH, dtype, FLASH.context_length, 64, draft=False))
    fixed = state.live_bytes()
    state.position = 131_072
    assert state.live_bytes() - fixed == expected * 131_072


def test_fixed_cost_of_a_session() -> None:
    """Windows and frontiers are 17 MiB; each place for rewinding, and one for the token under way, costs a third of a
    megabyte."""
    least = SequenceMemory(StateLayout(FLASH, torch.float16, 4096, 0, draft=False)).live_bytes()
    usual = SequenceMemory(StateLayout(FLASH, torch.float16, 4096, 64, draft=False)).live_bytes()
    assert least == 12_206_080 + 5_636_096 + 340_992
    assert usual - least == 64 * 340_992

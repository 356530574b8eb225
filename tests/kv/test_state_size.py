"""Attention state costs what the architecture says, and no more."""

import pytest

from penstock.backend.state import DRAFTS
from tests.published import FLASH, flash_layout


@pytest.mark.parametrize(("kv_dtype", "expected"), [("f16", 6880), ("bf16", 6880), ("f32", 13760)])
def test_bytes_per_token_of_the_published_model(kv_dtype: str, expected: int) -> None:
    layout = flash_layout(kv_dtype, FLASH.context_length, 64)
    assert layout.live_bytes(131_072) - layout.live_bytes(0) == expected * 131_072


def test_fixed_cost_of_a_session() -> None:
    """Windows and frontiers are 17 MiB; each place for rewinding, and those for the token under way and for drafts,
    cost a third of a megabyte."""
    least, usual = (flash_layout("f16", 4096, max_rewind).live_bytes(0) for max_rewind in (0, 64))
    assert least == 12_206_080 + 5_636_096 + (1 + DRAFTS) * 340_992
    assert usual - least == 64 * 340_992

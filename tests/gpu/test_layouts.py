"""Packed weights are the file's weights: unpacking gives back every byte.  Needs no GPU."""

import numpy as np
import pytest

from penstock.backend.cuda import layouts
from penstock.weights import types
from penstock.weights.types import WeightType


def random_rows(kind: WeightType, rows: int, columns: int, seed: int = 0) -> layouts.Bytes:
    return np.random.default_rng(seed).integers(0, 256, (rows, kind.row_bytes(columns)), np.uint8)


@pytest.mark.parametrize("kind", layouts.LAYOUTS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (48, 1024), (37, 512)])
def test_unpacking_gives_back_the_bytes(kind: WeightType, rows: int, columns: int) -> None:
    raw = random_rows(kind, rows, columns)
    packed = layouts.pack(raw, kind)
    assert packed.shape == layouts.packed_shape(kind, rows, columns)
    back = layouts.unpack(packed, kind, rows, columns)
    assert np.array_equal(back, raw)


@pytest.mark.parametrize("kind", [types.Q8_0, types.MXFP4, types.F16], ids=lambda kind: kind.name)
def test_short_rows_are_padded_with_zeros(kind: WeightType) -> None:
    raw = random_rows(kind, 5, 96)
    packed = layouts.pack(raw, kind)
    assert np.array_equal(layouts.unpack(packed, kind, 5, 96), raw)
    full = layouts.unpack(packed, kind, 16, 256)
    assert not full[5:].any()


def test_cells_start_at_multiples_of_sixteen() -> None:
    assert all(layout.cell_bytes % 16 == 0 for layout in layouts.LAYOUTS.values())


def test_q8_0_lane_order() -> None:
    """Lane 4g + t, register r of a step: row g + 8 (r odd), columns 8t + 4 (r > 1) …, as the kernels assume."""
    raw = np.zeros((16, types.Q8_0.row_bytes(256)), np.uint8)
    row, column = 11, 3 * 32 + 8 * 2 + 5  # g = 3, half 1; step 3, t = 2, second register pair, byte 1
    raw[row, column // 32 * 34 + 2 + column % 32] = 77
    packed = layouts.pack(raw, types.Q8_0)[0, 0]
    assert packed[3 * 512 + (4 * 3 + 2) * 16 + 3 * 4 + 1] == 77
    assert np.count_nonzero(packed) == 1

"""How products of many rows are cut on each kind of card, worked out on the host."""

import re

import pytest

pytest.importorskip("torch")

from penstock.backend.cuda import prefill_attention, prefill_products
from penstock.backend.cuda.compile import SOURCES
from penstock.backend.cuda.device import SHARED_LIMITS
from penstock.backend.cuda.layouts import LAYOUTS
from penstock.backend.cuda.prefill_products import form_of
from penstock.weights.types import WeightType


@pytest.mark.parametrize("kind", list(LAYOUTS), ids=lambda kind: kind.name)
@pytest.mark.parametrize("capability", list(SHARED_LIMITS), ids=str)
def test_a_block_has_room_and_something_on_its_way(kind: WeightType, capability: tuple[int, int]) -> None:
    form = form_of(kind, capability == (9, 0), SHARED_LIMITS[capability])
    assert form.shared <= SHARED_LIMITS[capability]
    assert form.stages >= 2


@pytest.mark.parametrize("capability", list(SHARED_LIMITS), ids=str)
def test_attention_has_room(capability: tuple[int, int]) -> None:
    of_warpgroups = capability == (9, 0)
    _, shared = prefill_attention.OF_WARPGROUPS if of_warpgroups else prefill_attention.OF_WARPS
    assert shared <= SHARED_LIMITS[capability]


def test_cells_are_cut_as_the_kernels_cut_them() -> None:
    text = (SOURCES / "unpack.cuh").read_text()
    found = re.findall(r"struct Unpack<(\w+)> \{\s+static constexpr int bytes = (\d+), codes = (\w+),", text)
    assert len(found) == len(LAYOUTS)
    numbers = dict(re.findall(r"(\w+) = (\d+)", text.split("enum Format {")[1].split("}")[0]))
    by_number = {layout.number: (kind, layout) for kind, layout in LAYOUTS.items()}
    for name, size, codes in found:
        kind, layout = by_number[int(numbers[name])]
        assert int(size) == layout.cell_bytes
        assert int(size if codes == "bytes" else codes) == prefill_products.CODES.get(kind, 0)

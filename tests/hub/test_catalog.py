"""The known models: what is said of them fits together, and the page about them is made from it."""

from pathlib import Path

import pytest

from docs.generate.models_page import page
from penstock.hub.catalog import Known, known_by_name, read_catalog
from penstock.hub.outline import outline_known
from penstock.hub.reference import parse_reference
from penstock.weights.opening import open_checkpoint

ROOT = Path(__file__).parents[2]
MODELS = read_catalog().models
# What a header with the real vocabulary has beyond one without any, and rounding to a tenth of a gigabyte.
TOLERANCE = 60_000_000


def test_every_entry_can_be_asked_for() -> None:
    assert len({model.name for model in MODELS}) == len(MODELS)
    for model in MODELS:
        assert known_by_name(model.name.upper()) is model
        assert parse_reference(str(model.reference)) == model.reference
        assert set(model.source) <= set(read_catalog().sources)
        assert (model.bytes is None) or (model.about is None)


@pytest.mark.parametrize(
    "model", [m for m in MODELS if m.file.endswith(".gguf")], ids=lambda model: model.name
)
def test_the_types_make_up_the_size_that_was_published(model: Known, tmp_path: Path) -> None:
    path = outline_known(model, tmp_path)
    assert path is not None
    assert model.size is not None
    assert abs(path.stat().st_size - model.size) < TOLERANCE
    assert path.stat().st_blocks * 512 < 1 << 20  # nothing of it is on the disk
    assert open_checkpoint(path).config.layer_count == 43


def test_the_page_is_not_stale() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert page(text) == text, "run `make docs`"

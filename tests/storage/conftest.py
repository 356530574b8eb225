"""A pack for all tests."""

from pathlib import Path

import pytest

from penstock.storage.pack import pack_path
from penstock.storage.pack_writer import write_pack
from penstock.weights.opening import open_checkpoint
from tests.storage.packs import make_model


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a pack beside it, which tests leave alone."""
    path = make_model("q2", tmp_path_factory.mktemp("packed"))
    write_pack(open_checkpoint(path), pack_path(path))
    return path

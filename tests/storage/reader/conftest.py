"""A file, and somebody who reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.storage.reader import BLOCK, OpenFile, Reader
from tests.storage.reader.pieces import CONTENT, refuse_direct


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.bin"
    made.write_bytes(CONTENT.tobytes())
    return made


@pytest.fixture
def reader() -> Iterator[Reader]:
    """One thread, so that reads have an order; small chunks, so that pieces have several."""
    made = Reader(threads=1, chunk=2 * BLOCK)
    yield made
    made.close()


@pytest.fixture
def file(reader: Reader, path: Path) -> OpenFile:
    return reader.open(path)


@pytest.fixture(params=["direct", "cached"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cached":
        refuse_direct(monkeypatch)
    return str(request.param)

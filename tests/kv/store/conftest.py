"""A store, and states to save."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.backend.state import StateMemory
from penstock.kv.store import KvStore
from tests.kv.saved import MODEL, PLENTY


@pytest.fixture
def states(engine: penstock.Engine) -> StateMemory:
    return engine.states


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KvStore]:
    with KvStore(tmp_path / "store", PLENTY, MODEL) as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time, in hours."""

    def set_time(hours: float) -> None:
        monkeypatch.setattr("time.time", lambda: 1e9 + 3600 * hours)

    set_time(0)
    return set_time

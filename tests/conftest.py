"""Shared fixtures: a home of the tests' own, and one tiny random model on disk, opened once."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # llama.cpp's threads must not starve ours on two cores

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import penstock
from tests import home
from tests.tiny import TinyModel, make_tiny

settings.register_profile(
    "penstock", deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True
)
settings.load_profile("penstock")


def pytest_unconfigure() -> None:
    home.move_out()


@pytest.fixture(autouse=True)
def real_home_untouched() -> Iterator[None]:
    yield
    found = [home.TRESPASSES.pop() for _ in home.TRESPASSES.copy()]
    assert not found


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that is noted from one run to the next is read from or written to the user's own folder, whichever
    process does it: what a session-wide fixture notes goes here, and every test has a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test notes must not be known to the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The default tiny model: every attention kind, hash and scored routing, an indexer that drops rows."""
    return make_tiny(tmp_path_factory.mktemp("tiny"), length=300)


@pytest.fixture(scope="session")
def engine(tiny: TinyModel) -> penstock.Engine:
    """That model opened with the default 16-bit state, and a small rewind bound so that tests can pass it."""
    return penstock.Engine(tiny.folder, max_rewind=24)


@pytest.fixture
def make_engine(tiny: TinyModel) -> Callable[..., penstock.Engine]:
    def make(path: Path | None = None, **options: object) -> penstock.Engine:
        return penstock.Engine(path or tiny.folder, **options)  # type: ignore[arg-type]

    return make

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

# What engines that several tests share have used is not learned: the next ones would begin with it.
CACHE = Path(os.environ["XDG_CACHE_HOME"])
(CACHE / "penstock" / "cuda").mkdir(parents=True, exist_ok=True)
(CACHE / "penstock" / "usage").touch()  # a file where a folder would have to be

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


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test notes is not known to the next; only compiled kernels are shared."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "penstock").mkdir()
    (folder / "penstock" / "cuda").symlink_to(CACHE / "penstock" / "cuda")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


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

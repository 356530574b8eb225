"""Finding and loading the native library, and sharing work between threads."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import penstock
from penstock.errors import PenstockError
from penstock.kernels.cpu import library, parallel
from tests.kernels.helpers import threads

ROOT = Path(__file__).parents[2]


def test_a_missing_library_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock, "__path__", [str(tmp_path)])
    with pytest.raises(PenstockError, match=r"not been built[\s\S]*cmake -S src/penstock/native"):
        library.find()


def test_a_damaged_library_says_so(tmp_path: Path) -> None:
    (tmp_path / library.NAME).write_bytes(b"not a library")
    with pytest.raises(PenstockError, match="cannot be loaded"):
        library.load(tmp_path / library.NAME)


def test_another_interface_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI", library.ABI + 1)
    with pytest.raises(PenstockError, match="interface version"):
        library.load(library.find())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_piece_is_done_once(count: int) -> None:
    done: list[int] = []
    parallel.each(100, count, done.append)
    assert sorted(done) == list(range(100))


def test_a_failing_piece_fails_the_call() -> None:
    def fail(number: int) -> None:
        if number == 7:
            raise RuntimeError("seven")

    for count in (1, 2, 5):
        with pytest.raises(RuntimeError, match="seven"):
            parallel.each(20, count, fail)


def test_ops_inside_ops_do_not_wait_for_each_other() -> None:
    inner: list[int] = []

    def outer(_: int) -> None:
        parallel.each(4, parallel.threads_for(1 << 40), inner.append)

    with threads(8):
        worker = threading.Thread(target=lambda: parallel.each(16, 8, outer), daemon=True)
        worker.start()
        worker.join(20)
    assert not worker.is_alive()
    assert len(inner) == 64


def test_ranges_cover_all_rows() -> None:
    for rows in (0, 1, 3, 50):
        for count in (1, 2, 5):
            seen = torch.zeros(rows, dtype=torch.long)

            def mark(start: int, stop: int, seen: torch.Tensor = seen) -> None:
                seen[start:stop] += 1

            with threads(count):
                parallel.over_rows(rows, 1 << 40, mark)
            assert (seen == 1).all()


SANITIZED = """
import sys
from pathlib import Path
from penstock.kernels.cpu import library
library.find = lambda: Path(sys.argv[1])
assert library.native()._name == sys.argv[1]
import pytest
folder = sys.argv[2]
names = ("test_linear.py", "test_expert_op.py", "test_rowwise.py", "test_attention.py")
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *(f"{folder}/{name}" for name in names)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="preloads the sanitizer's run-time library")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """The same tests against a build that watches every access."""
    source = Path(penstock.__path__[0]) / "native"
    configure = ["cmake", "-S", str(source), "-B", str(tmp_path), "-DPENSTOCK_SANITIZE=ON"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path)], check=True, capture_output=True)
    asan = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }
    command = [sys.executable, "-c", SANITIZED, str(tmp_path / library.NAME), str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

"""The native threads: every piece once, whoever calls from wherever."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from penstock.native.library import native
from penstock.weights import types
from tests.backend.helpers import assert_same_bits, make_weight, random
from tests.native.products import linear

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300  # for what takes seconds on an idle machine


def check(pieces: int, count: int) -> bool:
    """Whether every piece was done once, each with a nested call in it."""
    counts = np.zeros(pieces, np.int32)
    native().ps_threads_check(pieces, count, counts.ctypes.data)
    return bool((counts == 1).all())


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7, 1000])
def test_every_piece_is_done_once(pieces: int, count: int) -> None:
    assert all(check(pieces, count) for _ in range(20))


STRESS = """
import time
from tests.native.test_threads import check
end = time.monotonic() + 4
while time.monotonic() < end:
    assert all(check(pieces, 3) for pieces in (2, 40, 3, 200) for _ in range(20))
"""


def test_small_calls_and_large_ones_in_turn_on_a_crowded_machine() -> None:
    """A helper that leaves a small call late must not take the number of a piece of the large one that follows."""
    programs = [subprocess.Popen([sys.executable, "-c", STRESS], cwd=ROOT) for _ in range(4)]
    assert [program.wait(PATIENCE_S) for program in programs] == [0] * 4


def test_after_a_pause() -> None:
    for pause in (0, 0.0001, 0.001, 0.02):  # helpers watching, about to sleep, asleep
        for _ in range(20):
            time.sleep(pause)
            assert check(50, 4)


def test_from_many_threads_at_once() -> None:
    good: list[bool] = []
    workers = [
        threading.Thread(target=lambda: good.append(all(check(40, 3) for _ in range(100))), daemon=True)
        for _ in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
    assert good == [True] * 6


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_after_a_fork() -> None:
    assert check(100, 4)
    child = os.fork()
    if child == 0:
        os._exit(0 if check(100, 4) and check(100, 4) else 1)
    deadline = time.monotonic() + PATIENCE_S
    status = None
    while time.monotonic() < deadline:
        done, result = os.waitpid(child, os.WNOHANG)
        if done:
            status = result
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert status == 0
    assert check(100, 4)


def test_products_from_many_threads(tmp_path: Path) -> None:
    weight = make_weight(tmp_path / "w", types.Q8_0, 700, 1024)
    x = random(9, 1024)
    expected = linear(x, weight)
    found: list[Tensor] = []

    def work() -> None:
        found.extend(linear(x, weight, threads=3) for _ in range(10))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 40
    for result in found:
        assert_same_bits(result, expected)

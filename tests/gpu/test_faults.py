"""What the driver, torch or the compiler say becomes an error of ours, and tells whether anything still works."""

import subprocess
import sys
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

import pytest
import torch

from penstock.backend.cuda import device
from penstock.backend.cuda.compile import CompileError, KernelCache, Target
from penstock.backend.cuda.device import CudaError, CudaFullError, check, translated
from penstock.errors import DeviceLostError


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_ECC_UNCORRECTABLE = 214
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_FAILED = 719


class Driver:
    """One whose context is in this state."""

    def __init__(self, status: Status):
        self._status = status

    def cuCtxSynchronize(self) -> tuple[Status]:
        return (self._status,)


def test_a_call_that_is_refused_is_an_error_for_its_request() -> None:
    assert check((Status.CUDA_SUCCESS, 7), "a page") == 7
    with pytest.raises(CudaError, match="a page: the CUDA driver says CUDA_ERROR_INVALID_VALUE"):
        check((Status.CUDA_ERROR_INVALID_VALUE,), "a page")
    with pytest.raises(CudaFullError, match="a page: the GPU's memory is full"):
        check((Status.CUDA_ERROR_OUT_OF_MEMORY,), "a page")


@pytest.mark.parametrize("status", [status for status in Status if status > 2])
def test_a_lost_card_is_named(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceLostError, match=rf"the GPU is lost \(a step: {status.name}\)"):
        check((status,), "a step")
    monkeypatch.setattr(device, "driver", lambda: Driver(status))
    with pytest.raises(DeviceLostError, match=status.name), translated("a step"):
        raise RuntimeError("CUDA error: something terrible\nand a lot of advice")


def test_what_torch_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver", lambda: Driver(Status.CUDA_SUCCESS))
    with pytest.raises(CudaError, match=r"^a step: CUDA error: invalid argument$"), translated("a step"):
        raise RuntimeError("CUDA error: invalid argument\nand a lot of advice")


def test_full_memory_says_what_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 29, 80 << 30))
    with (
        pytest.raises(CudaError, match=r"0\.5 of 80\.0 GiB are free.*a shorter context"),
        translated("a step"),
    ):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")


def test_what_does_not_compile_leaves_nothing_behind(tmp_path: Path) -> None:
    def refuses(name: str, _: str, __: Mapping[str, str], ___: tuple[str, ...]) -> bytes:
        raise CompileError(f"{name}: the CUDA compiler refused it")

    (tmp_path / "a.cu").write_text("kernel")
    cache = KernelCache(tmp_path / "cache", refuses, Target("sm_90a", "13000", "13.0"), tmp_path)
    for _ in range(2):
        with pytest.raises(CompileError, match=r"a\.cu: the CUDA compiler refused it"):
            cache.get("a.cu")
    assert not (tmp_path / "cache").exists()


BROKEN = """
from penstock import Engine
from penstock.engine.scheduler import Scheduler
from penstock.pocket import pocket_path
from tests.engine.clients import Client

engine = Engine(pocket_path(), device="cuda", context=512, draft="off")
scheduler = Scheduler(engine, parallel=1)
engine.states.writable = lambda slot: 64  # where nothing is
clients = [Client([5, 6, 7]), Client([8, 9, 10])]
for client in clients:
    scheduler.submit(client.request)
scheduler.start()
assert all(client.over.wait(60) for client in clients)
print(*(type(client.failure).__name__ for client in clients), type(scheduler.failure).__name__)
print(scheduler.failure)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_an_illegal_address_ends_the_scheduler_and_everybody_hears_why() -> None:
    """In a process of its own, which cannot use the card afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout.splitlines()
    assert said[:1] == ["DeviceLostError DeviceLostError DeviceLostError"], done.stderr[-2000:]
    assert "the GPU is lost" in said[1]
    assert "ILLEGAL_ADDRESS" in said[1]

"""One real server, as a process of its own, for the clients that people use."""

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.pocket import pocket_path

KEY: Final = "secret"
MODEL: Final = "pocket"
INSTALLED: Final = Path(__file__).parents[2] / "build" / "clients"  # by `make test-clients`


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clients: programs from npm and PyPI; run with `make test-clients`")


class RunningServer:
    """Where it is, and what it is doing."""

    def __init__(self, url: str):
        self.url = url
        self.openai = f"{url}/v1"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers={"Authorization": f"Bearer {KEY}"}, timeout=30)

    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.get("/slots").json())

    def counted(self, name: str, **labels: str) -> float:
        """The sum of a counter over everything that has these labels."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if sample.labels.items() >= labels.items())

    @contextmanager
    def left_alone(self, tokens: int) -> Iterator[None]:
        """Meanwhile a client asks for something that takes so many tokens, and goes away: the server does not go on
        to their end."""
        before = self._worked()
        yield
        deadline = time.monotonic() + 60
        while self.busy():
            assert time.monotonic() < deadline, "the server goes on although the client has gone"
            time.sleep(0.02)
        assert self._worked() - before < tokens

    def _worked(self) -> float:
        read = self.counted("penstock_prompt_tokens_total", source="read")
        return read + self.counted("penstock_generated_tokens_total")


@contextmanager
def serving(*arguments: str) -> Iterator[RunningServer]:
    """`penstock serve` on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "--port", "0", "--name", MODEL, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_API_KEY": KEY},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "listening on" in line, line
        server = RunningServer(line.split()[-1])
        deadline = time.monotonic() + 60
        while httpx.get(f"{server.url}/health", timeout=30).status_code != 200:
            assert time.monotonic() < deadline, "the model is not read"
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with serving("--threads", "1", "--context", "8192") as running:
        yield running


@pytest.fixture(scope="session")
def node() -> Path:
    """Where the programs from npm are installed."""
    if shutil.which("node") is None or not (INSTALLED / "node_modules" / "ai").exists():
        pytest.skip("`make test-clients` installs what this needs")
    return INSTALLED


@pytest.fixture(scope="session")
def long_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The same model with a context that agents' prompts fit in.  It was never taught such lengths: what it says
    does not matter here, only that it arrives."""
    model = bytearray(pocket_path().read_bytes())
    key = b"deepseek4.context_length"
    place = model.index(key) + len(key) + 4  # after the type of the value
    assert struct.unpack_from("<I", model, place) == (1 << 15,)
    struct.pack_into("<I", model, place, 1 << 17)
    path = tmp_path_factory.mktemp("model") / "long.gguf"
    path.write_bytes(model)
    with serving("-m", str(path), "--threads", "2", "--context", str(1 << 17)) as running:
        yield running

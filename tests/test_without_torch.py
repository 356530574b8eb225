"""Torch is for tests and for CUDA: every command does without it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measured import machine_known
from tests.weights.official import official_checkpoint, official_config

PATIENCE_S = 600  # for what takes a second on an idle machine
# Whoever imports torch fails: None in sys.modules makes the import an error.
BLOCKED = "import sys; sys.modules['torch'] = None; sys.argv[0] = 'penstock'; "
COMMAND = BLOCKED + "from penstock.cli.main import main; main()"
SMALL = ["--threads", "1", "--context", "512"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What was measured on this machine is not touched."""
    with machine_known(tmp_path / "cache"):
        yield {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}


def penstock(environment: dict[str, str], *arguments: str, typed: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_block_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + "import torch"], capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError" in done.stderr


def test_run(environment: dict[str, str]) -> None:
    assert "42" in penstock(environment, "run", "What is 17 + 25?", "--temperature", "0", *SMALL)


def test_chat(environment: dict[str, str]) -> None:
    typed = "What is 17 + 25?\n/exit\n"
    assert "42" in penstock(environment, "chat", "--temperature", "0", *SMALL, typed=typed)


def test_plan(environment: dict[str, str]) -> None:
    assert json.loads(penstock(environment, "plan", "--json"))


def test_bench(environment: dict[str, str]) -> None:
    found = penstock(environment, "bench", "--context", "64", "--decode", "2", "--json", "--threads", "1")
    assert json.loads(found)


def test_synth_and_inspect(environment: dict[str, str], tmp_path: Path) -> None:
    penstock(
        environment, "synth", str(tmp_path / "m.gguf"), "--width", "tiny", "--layers", "3", "--mix", "q8_0"
    )
    assert "Q8_0" in penstock(environment, "inspect", str(tmp_path / "m.gguf"))


def test_quantize(environment: dict[str, str], tmp_path: Path) -> None:
    """A checkpoint in FP8 and FP4, as it is published."""
    official_checkpoint(tmp_path / "official", official_config(), seed=0, mtp=False)
    penstock(environment, "quantize", str(tmp_path / "official"), str(tmp_path / "m.gguf"), "--mix", "q8_0")
    assert "Q8_0" in penstock(environment, "inspect", str(tmp_path / "m.gguf"))


def test_serve(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", COMMAND, "serve", "--port", "0", *SMALL]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            place = re.search(r"http://\S+", server.stdout.readline())
            assert place is not None
            body = json.dumps(
                {
                    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
                    "temperature": 0,
                    "max_tokens": 40,
                }
            )
            request = urllib.request.Request(
                f"{place[0].rstrip('/')}/v1/chat/completions",
                body.encode(),
                {"Content-Type": "application/json"},
            )
            answer = json.loads(_answered(request))
            assert "42" in answer["choices"][0]["message"]["content"]
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _answered(request: urllib.request.Request) -> bytes:
    """As soon as the model is loaded."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return bytes(response.read())
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)

"""`penstock run --cluster` and `penstock worker`, as people call them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parents[1]
PATIENCE = 300


def start(*arguments: str, block: str = "pass") -> subprocess.Popen[str]:
    code = f"import sys; {block}; sys.argv[0] = 'penstock'; from penstock.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


def test_a_question_to_two_processes(port: int, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret that is long enough\n")
    common = ["--secret", str(tmp_path / "secret"), "--threads", "1"]
    worker = start("worker", "--join", f"127.0.0.1:{port}", "--layers", "5:8", "--once", *common)
    flags = ["--cluster", f"127.0.0.1:{port}", "--stages", "2", "--temperature", "0", "--context", "512"]
    head = start("run", "What is 17 + 25?", *flags, *common)
    answer, said = head.communicate(timeout=PATIENCE)
    assert head.returncode == 0, said
    assert "42" in answer
    assert f"waiting for 1 workers at 127.0.0.1:{port}" in said
    assert "2 of 2 stages are here" in said
    _, told = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0, told
    assert "layers 5:8 are ready" in told


def test_a_question_to_a_head_with_an_expert_worker(port: int) -> None:
    """The head answers whether or not the worker is there in time."""
    worker = start("worker", "--join", f"127.0.0.1:{port}", "--experts", "50%", "--once", "--threads", "1")
    flags = ["--cluster", f"127.0.0.1:{port}", "--stages", "1", "--temperature", "0", "--context", "512"]
    head = start("run", "What is 17 + 25?", *flags, "--threads", "1")
    answer, said = head.communicate(timeout=PATIENCE)
    assert head.returncode == 0, said
    assert "42" in answer
    assert f"expert workers may join at 127.0.0.1:{port}" in said
    worker.kill()
    worker.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("worker", "--join", "nowhere"), "--join is 'nowhere', expected HOST:PORT"),
        (("worker",), "missing option '--join'"),
        (("worker", "--join", "h:1", "--layers", "3"), "layers is '3', expected one of auto, FIRST:END"),
        (("worker", "--join", "h:1", "--experts", "2"), "--experts is '2', expected auto, or a share"),
        (("run", "x", "--cluster", "here"), "cluster is 'here', expected HOST:PORT"),
        (("run", "x", "--cluster", "192.0.2.1:9"), "cluster: cannot listen on 192.0.2.1:9"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = start(*arguments)
    _, said = done.communicate(timeout=PATIENCE)
    assert done.returncode in (1, 2)
    assert words in said
    assert said.count("\n") == 1


def test_without_torch_it_says_what_is_missing() -> None:
    done = start("run", "x", "--cluster", "127.0.0.1:0", block="sys.modules['torch'] = None")
    _, said = done.communicate(timeout=PATIENCE)
    assert "a cluster needs torch: `pip install penstock[cluster]` brings it" in said

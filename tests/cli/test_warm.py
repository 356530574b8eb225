"""`penstock warm`: what a client begins with is read once, kept, and there when the client really starts."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.clients.expected_pace import expected_pace
from penstock.clients.first_prompt import FIRST_PROMPTS, expected_wait, forecast, label
from penstock.clients.setups import SETUPS
from penstock.clients.target import Served, Target, find
from penstock.pocket import pocket_path
from tests.measured import machine_known

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where clients are installed: `claude`, which is a made-up agent."""
    folder = tmp_path / "bin"
    folder.mkdir()
    _install(folder, "claude", f'exec {sys.executable} {ROOT}/tests/clients/fake_agent.py "$@"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # commands run in other folders
    with machine_known(tmp_path / "cache"):
        yield folder


def _install(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@contextmanager
def serving(*arguments: object) -> Iterator[str]:
    """The address of a server, which is killed: nothing is saved that was not before."""
    command = [
        sys.executable,
        "-m",
        "penstock",
        "serve",
        "--port",
        "0",
        "--threads",
        "1",
        *map(str, arguments),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()


def penstock(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def ask(url: str, cwd: Path) -> dict[str, int]:
    """What the agent's own first question costs."""
    done = penstock("launch", "claude", "--url", url, "--run", "--", "-p", "What is 2 + 2?", cwd=cwd)
    assert done.returncode == 0, done.stderr
    usage: dict[str, int] = json.loads(done.stdout)
    return usage


def props(url: str) -> Any:
    return httpx.get(f"{url}/props", timeout=60).json()["penstock"]


@pytest.mark.usefixtures("programs")
def test_the_first_real_question_finds_the_prompt_read_also_after_a_crash(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with serving("--kv-dir", tmp_path / "kv") as url:
        done = penstock("warm", "claude", "--url", url, cwd=here)
        assert done.returncode == 0, done.stderr
        kept = int(done.stdout.split()[0].replace(",", ""))
        assert f"tokens that claude begins with in {here} are kept on disk" in done.stdout
        assert props(url)["sessions"]["pinned"] == {label("claude", here): kept}
    with serving("--kv-dir", tmp_path / "kv") as url:
        usage = ask(url, here)
        assert usage["cache_read_input_tokens"] == kept
        assert usage["input_tokens"] < 40 < 1000 < kept, "nothing but the question is read"
        assert ask(url, there)["cache_read_input_tokens"] < kept, "another folder is another prompt"
        shown = penstock("launch", "claude", "--url", url, cwd=here).stdout
        assert f"{kept:,} tokens that claude begins with here are kept" in shown


@pytest.mark.usefixtures("programs")
def test_what_was_read_before_is_pinned_without_reading_it_again(tmp_path: Path) -> None:
    with serving("--kv-dir", tmp_path / "kv") as url:
        ask(url, tmp_path)
        read = props(url)["scheduler"]["steps"]
        assert props(url)["sessions"]["pinned"] == {}
        done = penstock("warm", "claude", "--url", url, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert label("claude", tmp_path) in props(url)["sessions"]["pinned"]
        assert props(url)["scheduler"]["steps"] - read < 20


@pytest.mark.usefixtures("programs")
def test_on_a_terminal_the_client_has_the_screen_and_is_ended(tmp_path: Path) -> None:
    with serving() as url:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "penstock", "warm", "claude", "--url", url]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # what a terminal says when the last program has closed it
            while piece := os.read(ours, 4096):
                seen += piece
        os.close(ours)
        assert process.wait() == 0, seen
        assert b"are kept in memory, until the server ends" in seen
        assert b'"input_tokens"' in seen, "the agent stayed open after its answer, as one with a screen does"
        assert (find(url).prefill or 0) > 0, "now it is known how fast the server reads"


def test_what_is_wrong_is_said(programs: Path, tmp_path: Path) -> None:
    _install(programs, "claude", "echo Please log in; exit 3")
    nobody = penstock("warm", "claude", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert nobody.returncode == 1
    assert (
        "nobody answers at http://127.0.0.1:9: start `penstock serve --kv-dir FOLDER` first" in nobody.stderr
    )
    none = penstock("warm", "open-webui", cwd=tmp_path)
    assert "open-webui asks only what people ask on its page" in none.stderr
    with serving() as url:
        silent = penstock("warm", "claude", "--url", url, cwd=tmp_path)
        assert silent.returncode == 1
        assert "claude has ended without a question: Please log in" in silent.stderr
        file = penstock("warm", "pi", "--url", url, cwd=tmp_path)
        assert "`penstock launch pi --write`" in file.stderr
        missing = penstock("warm", "aider", "--url", url, cwd=tmp_path)
        assert "'aider' is not installed, or not on PATH" in missing.stderr
        assert httpx.post(f"{url}/props", json={"pin": "No Such"}, timeout=60).status_code == 400
        assert httpx.post(f"{url}/props", json={}, timeout=60).status_code == 400


def test_the_wait_is_foretold_as_far_as_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = Target("http://x", reached=True, prefill=100_000.0)
    slow = Target("http://x", reached=True, prefill=FIRST_PROMPTS["claude"].tokens / 600)
    assert forecast("claude", fast, tmp_path) == ""
    assert "10 minutes at the 20 tokens/s" in forecast("claude", slow, tmp_path)
    assert "`penstock warm claude`" in forecast("claude", slow, tmp_path)
    assert "shows with its first prompt" in expected_wait("claude", Target("http://x", reached=True))
    served = Served(pocket_path(), None, 4096)
    monkeypatch.setattr("penstock.clients.expected_pace.expected_pace", lambda _: slow.prefill)
    planned = expected_wait("claude", Target("http://x", reached=True, served=served))
    assert "10 minutes at the 20 tokens/s that `penstock plan` expects here" in planned
    assert "how many tokens aider begins with shows when it does" in expected_wait("aider", slow)
    assert forecast("open-webui", slow, tmp_path).endswith(
        "at which this server reads"
    )  # `warm` cannot ask on its page
    assert forecast("claude", Target("http://x"), tmp_path) == ""
    kept = Target("http://x", reached=True, pinned={label("claude", tmp_path): 9000})
    assert "9,000 tokens" in forecast("claude", kept, tmp_path)


@pytest.mark.usefixtures("hasty")
def test_a_server_that_has_read_nothing_is_foretold_by_the_plan() -> None:
    with serving("-m", os.path.relpath(pocket_path())) as url:
        target = find(url)
        assert target.served is not None
        assert target.served.path.is_absolute()
        assert target.served.path.samefile(pocket_path())
        pace = expected_pace(target.served)
        assert pace is not None
        assert pace > 0
    nowhere = Served(Path("/nowhere/m.gguf"), None, 4096)
    assert expected_pace(nowhere) is None


def test_every_client_is_known() -> None:
    assert FIRST_PROMPTS.keys() == SETUPS.keys()

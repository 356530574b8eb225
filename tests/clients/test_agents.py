"""Coding agents, set up by `penstock launch`, without a screen and without the internet.

Their prompts are tens of thousands of tokens long, and the pocket model answers nonsense.  What counts is that they
understand the server: they end well, something was said, nothing was refused, and the second turn is recognised.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.asked import SUM
from tests.clients.conftest import KEY, RunningServer

pytestmark = pytest.mark.clients

# What an agent is asked, in the first turn and in the second.  A model that knows nothing gets no tool that changes
# anything: codex has a sandbox, claude asks, and see `home` for opencode.
TURNS = {
    "codex": (
        ["exec", "--skip-git-repo-check", SUM],
        ["exec", "--skip-git-repo-check", "resume", "--last", SUM],
    ),
    "claude": (["-p", SUM], ["-p", "--continue", SUM]),
    "opencode": (["run", SUM], ["run", "--continue", SUM]),
    "continue": (["--readonly", "-p", SUM], ["--readonly", "--resume", "-p", SUM]),
    "pi": (["--tools", "read", "-p", SUM], ["--tools", "read", "--continue", "-p", SUM]),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    settings = tmp_path / ".config" / "opencode" / "opencode.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"permission": {"bash": "deny", "edit": "deny", "webfetch": "deny"}}))
    (tmp_path / "project").mkdir()
    return tmp_path


@pytest.mark.parametrize("agent", TURNS)
def test_two_turns(agent: str, home: Path, node: Path, long_server: RunningServer) -> None:
    refused = long_server.counted("penstock_errors_total")
    for number, turn in enumerate(TURNS[agent]):
        recognised = long_server.counted("penstock_kv_lookups_total", source="memory")
        done = _run(agent, turn, home, node, long_server)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.strip(), done.stderr
        now = long_server.counted("penstock_kv_lookups_total", source="memory")
        assert number == 0 or now > recognised
    assert long_server.counted("penstock_errors_total") == refused


@pytest.mark.parametrize("agent", ["codex", "claude", "opencode"])  # which are harmless as `warm` starts them
def test_warm_keeps_what_it_begins_with(
    agent: str, home: Path, node: Path, long_server: RunningServer
) -> None:
    command = [sys.executable, "-m", "penstock"]
    where = ["--url", long_server.url, "--api-key", KEY]

    def penstock(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments, agent, *where],
            env=_environment(home, node),
            cwd=home / "project",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    penstock("launch", "--write")
    kept = int(penstock("warm").split()[0].replace(",", ""))
    read = long_server.counted("penstock_prompt_tokens_total", source="read")
    done = _run(agent, [*TURNS[agent][0][:-1], "How many moons has Mars?"], home, node, long_server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert long_server.counted("penstock_prompt_tokens_total", source="read") - read < kept / 2


def _run(
    agent: str, turn: list[str], home: Path, node: Path, server: RunningServer
) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "penstock", "launch", agent, "--url", server.url, "--api-key", KEY]
    return subprocess.run(
        [*launch, "--write", "--run", "--", *turn],
        env=_environment(home, node),
        cwd=home / "project",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _environment(home: Path, node: Path) -> dict[str, str]:
    """A home of its own, and nothing outside this machine."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "PYTHONPATH") if name in os.environ}
    programs = f"{node / 'node_modules' / '.bin'}:{os.environ['PATH']}"
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
    here = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return {**kept, **nowhere, **here, "HOME": str(home), "PATH": programs}

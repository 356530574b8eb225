"""Libraries for agents and structured answers, each in its newest version, in an environment of their own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.asked import SUM, TOTAL
from tests.clients.conftest import INSTALLED, KEY, MODEL, RunningServer

pytestmark = pytest.mark.clients
SCRIPT: Final = Path(__file__).parent / "python" / "libraries.py"
CALL: Final = ["get_weather", {"city": "Paris"}]
# What each has of: a whole answer, one in pieces, a tool called, its result told, an object.
HAS: Final = {
    "pydantic_ai": {"whole", "pieces", "calls", "told", "object"},
    "openai_agents": {"whole", "pieces", "calls", "told", "object"},
    "instructor": {"object"},
    "llama_index": {"whole", "pieces", "calls", "object"},
    "haystack": {"whole", "pieces", "calls", "told", "object"},
    "dspy": {"whole", "object"},
    "smolagents": {"whole", "pieces", "calls"},
    "langgraph": {"whole", "pieces", "calls", "told", "object"},
    "llm": {"whole", "pieces", "calls", "told", "object"},
}


def program(name: str, *path: str) -> str:
    """Of an environment that `make test-clients` has made."""
    found = INSTALLED / name / "bin" / Path(*path)
    if not found.exists():
        pytest.skip("`make test-clients` installs what this needs")
    return str(found)


def environment(home: Path) -> dict[str, str]:
    """A home of its own, and nothing outside this machine."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
    here = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return {**nowhere, **here, "HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.mark.parametrize("library", HAS)
def test_what_a_library_can_do(library: str, server: RunningServer, tmp_path: Path) -> None:
    refused = server.counted("penstock_errors_total")
    done = subprocess.run(
        [program("python", "python"), str(SCRIPT), library, server.url, KEY, MODEL],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    has = HAS[library]
    assert has - {"calls"} <= found.keys()
    if "whole" in has:
        assert TOTAL in found["whole"]
    if "pieces" in has:
        assert "".join(found["pieces"]) == found["whole"]
    assert found["calls"] == ([CALL] if "calls" in has else [])
    if "told" in has:
        assert found["told"].strip()
    if "object" in has:
        assert {name: type(value) for name, value in found["object"].items()} == {"total": int, "right": bool}
    assert server.counted("penstock_errors_total") == refused


def test_aider(long_server: RunningServer, tmp_path: Path) -> None:
    """One message: it ends well, something was said, nothing was refused.  aider has no tools to call."""
    refused = long_server.counted("penstock_errors_total")
    said = long_server.counted("penstock_generated_tokens_total")
    where = ["--openai-api-base", long_server.openai, "--openai-api-key", KEY]
    quiet = [
        "--no-git",
        "--yes-always",
        "--no-check-update",
        "--analytics-disable",
        "--no-show-model-warnings",
    ]
    done = subprocess.run(
        [program("aider", "aider"), "--model", f"openai/{MODEL}", *where, *quiet, "--message", SUM],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert long_server.counted("penstock_generated_tokens_total") > said, done.stdout + done.stderr
    assert long_server.counted("penstock_errors_total") == refused

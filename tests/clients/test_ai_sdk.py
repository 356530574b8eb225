"""The Vercel AI SDK with each of its providers that can speak to a server of one's own."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.asked import TOTAL
from tests.clients.conftest import KEY, MODEL, RunningServer

pytestmark = pytest.mark.clients
SCRIPT = Path(__file__).parent / "node" / "ai_sdk.mjs"
CALL = ["get_weather", {"city": "Paris"}]


@pytest.fixture(scope="module", params=["compatible", "openai", "anthropic"])
def found(request: pytest.FixtureRequest, node: Path, server: RunningServer) -> Any:
    script = shutil.copy(SCRIPT, node)  # packages are found beside it
    command = ["node", script, request.param, server.url, KEY, MODEL]
    with server.left_alone(6_000):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_whole_and_in_pieces(found: Any) -> None:
    whole, pieces = found["whole"], found["pieces"]
    assert TOTAL in whole["text"]
    assert whole["reason"] == "stop"
    assert pieces["text"] == whole["text"]
    assert pieces["usage"]["outputTokens"] == whole["usage"]["outputTokens"] > 0


def test_reasoning_comes_apart(found: Any) -> None:
    assert found["thought"]["reasoning"]
    assert found["thought"]["text"]
    assert {"reasoning-start", "reasoning-delta", "reasoning-end"} <= set(found["thought"]["kinds"])


@pytest.mark.parametrize("kind", ["called", "streamed_call"])
def test_a_tool_is_called_and_answered(found: Any, kind: str) -> None:
    assert found[kind]["calls"] == [CALL]
    assert found[kind]["first"] == ""  # nothing of the call leaks as text
    assert "21" in found[kind]["text"]


def test_an_answer_has_the_form_that_was_asked_for(found: Any) -> None:
    assert {name: type(value) for name, value in found["object"].items()} == {"total": int, "right": bool}


def test_giving_up_ends_the_request(found: Any) -> None:
    assert found["aborted"]  # and the fixture has seen that the server stopped as well


def test_errors_are_told(found: Any) -> None:
    assert found["error"]["status"] == 400
    assert "context" in found["error"]["message"]

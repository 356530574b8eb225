"""Open WebUI, set up by `penstock launch`: what its page does when somebody asks something.

It offers the model its own tools, some 9,400 tokens of the pocket model's, and asks for a title and tags afterwards.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.clients.asked import SUM, TOTAL
from tests.clients.conftest import KEY, MODEL, RunningServer, serving
from tests.clients.test_libraries import environment, program

pytestmark = pytest.mark.clients
USER = {"name": "A", "email": "a@example.org", "password": "Secret-123456"}
ALONE = {  # it would ask the internet for a model of embeddings
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ANONYMIZED_TELEMETRY": "false",
    "WEBUI_SECRET_KEY": "secret",
}


@pytest.fixture(scope="module")
def pocket() -> Iterator[RunningServer]:
    """As people start it: with the context that the model has."""
    with serving("--threads", "2") as running:
        yield running


@pytest.fixture(scope="module")
def page(pocket: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Somebody who has signed up."""
    home = tmp_path_factory.mktemp("open-webui")
    folder = Path(program("open-webui", "open-webui")).parent
    port = free_port()
    more = {
        "DATA_DIR": str(home),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    launch = [
        sys.executable,
        "-m",
        "penstock",
        "launch",
        "open-webui",
        "--url",
        pocket.url,
        "--api-key",
        KEY,
        "--run",
    ]
    process = subprocess.Popen(
        [*launch, "--", "--host", "127.0.0.1", "--port", str(port)],
        env={**environment(home), **ALONE, **more},
        cwd=home,
        stdout=(home / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client:

            def answers() -> bool:
                assert process.poll() is None, (home / "log").read_text()[-4000:]
                try:
                    return client.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

            until(answers)
            token = client.post("/api/v1/auths/signup", json=USER).json()["token"]
            client.headers["Authorization"] = f"Bearer {token}"
            yield client
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(met: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 300
    while not (found := met()):
        assert time.monotonic() < deadline, "Open WebUI does not get on"
        time.sleep(0.5)
    return found


def test_the_model_is_offered(page: httpx.Client) -> None:
    assert MODEL in [model["id"] for model in page.get("/api/models").json()["data"]]


@pytest.mark.parametrize("stream", [False, True])
def test_its_api(page: httpx.Client, stream: bool) -> None:
    body = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": SUM}]}
    answer = page.post("/api/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith("data: [DONE]" if stream else "}")


def test_what_the_page_does(page: httpx.Client, pocket: RunningServer) -> None:
    refused = pocket.counted("penstock_errors_total")
    asked, answered = str(uuid4()), str(uuid4())
    question = {"id": asked, "parentId": None, "childrenIds": [answered], "role": "user", "content": SUM}
    empty = {
        "id": answered,
        "parentId": asked,
        "childrenIds": [],
        "role": "assistant",
        "content": "",
        "model": MODEL,
    }
    history = {"messages": {asked: question, answered: empty}, "currentId": answered}
    chat = {"title": "New Chat", "models": [MODEL], "history": history, "messages": [question, empty]}
    where = page.post("/api/v1/chats/new", json={"chat": chat}).json()["id"]
    jobs = dict.fromkeys(("title_generation", "tags_generation", "follow_up_generation"), True)
    body = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": SUM}],
        "params": {"function_calling": "native"},
        "features": {"memory": True},
        "session_id": "page",
        "chat_id": where,
        "id": answered,
        "parent_id": asked,
        "user_message": question,
        "background_tasks": jobs,
    }
    assert page.post("/api/chat/completions", json=body).json()["status"] is True

    def message() -> Any:
        found = page.get(f"/api/v1/chats/{where}").json()["chat"]["history"]["messages"][answered]
        assert not found.get("error"), found["error"]
        return found if found.get("done") else None

    told = until(message)
    assert TOTAL in told["content"]
    usage = told["usage"]
    assert (
        usage["input_tokens"] == usage["prompt_n"] + usage["cache_n"] > 8192
    )  # its tools are there, counted once
    until(lambda: page.get(f"/api/v1/chats/{where}").json()["title"] != chat["title"])
    assert pocket.counted("penstock_errors_total") == refused

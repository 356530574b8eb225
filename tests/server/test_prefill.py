"""While a prompt is read, streams tell how far it is: as comments that clients skip, and on demand as data."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.engine.progress import PrefillProgress
from penstock.pocket import pocket_path
from penstock.server.http.settings import Settings
from penstock.server.service import Service
from penstock.server.usage import Usage, sign_of_life
from tests.server.conftest import events
from tests.server.serving import serving

# A prompt of its own for each: what was read before need not be read again.
ASKED: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "red " * 40}], "max_tokens": 2},
    "/v1/completions": {"prompt": "green " * 40, "max_tokens": 2},
    "/v1/responses": {"input": "yellow " * 40, "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "black " * 40}], "max_tokens": 2},
}


class Halfway:
    """An engine that stands still in the middle of reading a prompt."""

    def __init__(self, engine: Engine):
        self._begin, self.go_on = engine.stepper.begin, threading.Event()
        engine.stepper.begin = self.begin  # type: ignore[method-assign]

    def begin(self, work: Sequence[Any], progress: Any = None) -> Any:
        several = any(len(ids) > 1 for _, ids, _ in work)  # of one token, half is none
        if progress is not None and several and not self.go_on.is_set():
            progress(0.5)
            self.go_on.wait(60)
        return self._begin(work, progress)


@pytest.fixture(scope="module")
def slow() -> Iterator[tuple[str, Halfway]]:
    engine = Engine(pocket_path(), threads=1, context=512)
    halfway, service = Halfway(engine), Service(engine, Settings(ping=0.01))
    service.scheduler.loop.told_every = 0.0
    with serving(service) as url:
        yield url, halfway
        halfway.go_on.set()


@pytest.mark.parametrize("path", ASKED)
def test_comments_say_how_far_it_is(slow: tuple[str, Halfway], path: str) -> None:
    url, halfway = slow
    halfway.go_on.clear()
    body = {"model": "m", "stream": True, **ASKED[path]}
    heard: list[str] = []
    with httpx.stream("POST", url + path, json=body, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            heard.append(line)
            if line.startswith(": prefill ") and "tokens/s" in line:
                halfway.go_on.set()
    told = next(line for line in heard if line.startswith(": prefill ") and "tokens/s" in line)
    words = told.removeprefix(": prefill ").split()
    done, total = map(int, words[0].split("/"))
    assert 0 < done < total
    assert words[2:] == ["tokens/s", words[3], "s", "left"]
    assert any(line.startswith("data: ") for line in heard[heard.index(told) :])


def test_progress_as_data(client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.scheduler.loop, "told_every", 0.0)
    body = {
        "messages": [{"role": "user", "content": "blue " * 60}],
        "max_tokens": 3,
        "stream": True,
        "seed": 1,
    }
    asked = client.post("/v1/chat/completions", json={**body, "return_progress": True})
    told = [event["prompt_progress"] for event in events(asked.text)[:-1] if "prompt_progress" in event]
    assert [set(each) for each in told] == [{"total", "cache", "processed", "time_ms"}] * len(told)
    assert [each["processed"] for each in told] == sorted(each["processed"] for each in told)
    assert len(told) > 2
    assert told[-1]["processed"] == told[-1]["total"] > 60
    assert all(each["cache"] == told[0]["cache"] for each in told)
    plain = client.post("/v1/chat/completions", json=body)
    assert "prompt_progress" not in plain.text
    deltas = [
        event["choices"][0]["delta"] for event in events(asked.text)[:-1] if "prompt_progress" not in event
    ]
    assert deltas == [event["choices"][0]["delta"] for event in events(plain.text)[:-1]]


def test_signs_of_life() -> None:
    assert sign_of_life([Usage()]) == ": waiting"
    assert sign_of_life([Usage(prefill=PrefillProgress(0, 10, 0))]) == ": prefill 0/10"
    reading = Usage(prefill=PrefillProgress(1124, 3604, 100, seconds=40.0))
    assert sign_of_life([Usage(first=1.0), reading]) == ": prefill 1124/3604 25.6 tokens/s 97 s left"
    assert sign_of_life([Usage(first=1.0)]) == ": generating"

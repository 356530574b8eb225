"""POST /v1/completions: text, ids, echo and log-probabilities."""

import threading
import time
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service
from tests.server.conftest import events

TEXT = "The user greets me. Hello! How can I help"


def post(client: TestClient, prompt: object, **more: Any) -> Any:
    reply = client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, "max_tokens": 6, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_text_goes_on_as_the_engine_says(client: TestClient, service: Service) -> None:
    engine = service.engine
    ids = [engine.tokenizer.bos_id or 0, *engine.tokenizer.encode(TEXT)]
    steps = list(engine.generate(ids, 6, Sampling(temperature=0)))
    answer = post(client, TEXT)
    assert answer["choices"][0]["text"] == "".join(step.text for step in steps)
    assert answer["choices"][0]["finish_reason"] == steps[-1].finish_reason
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert post(client, ids)["choices"] == answer["choices"]


def test_several_prompts_and_choices_keep_their_order(client: TestClient) -> None:
    answer = post(client, ["Hello", TEXT, "One"], n=2)
    texts = [choice["text"] for choice in answer["choices"]]
    alone = [post(client, prompt)["choices"][0]["text"] for prompt in ("Hello", TEXT, "One")]
    assert texts == [text for text in alone for _ in range(2)]
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))


def test_more_prompts_than_may_wait_are_answered(client: TestClient, service: Service) -> None:
    many = service.settings.parallel + service.settings.queue + 5
    assert len(post(client, ["Hello"] * many, max_tokens=1)["choices"]) == many


def test_a_stream_tells_the_same_as_the_whole(client: TestClient) -> None:
    fields = {"logprobs": 1, "echo": True, "stop": "never"}
    (whole,) = post(client, TEXT, **fields)["choices"]
    body = {"prompt": TEXT, "temperature": 0, "max_tokens": 6, "stream": True, **fields}
    *chunks, usage, done = events(
        client.post("/v1/completions", json={**body, "stream_options": {"include_usage": True}}).text
    )
    assert (usage["choices"], done) == ([], "[DONE]")
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    for field in ("tokens", "text_offset"):
        assert [x for choice in choices for x in choice["logprobs"][field]] == whole["logprobs"][field]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


def test_a_stop_string_is_not_shown(client: TestClient) -> None:
    (usual,) = post(client, "Hello")["choices"]
    (stopped,) = post(client, "Hello", stop=usual["text"][-3:])["choices"]
    assert (stopped["text"], stopped["finish_reason"]) == (usual["text"][:-3], "stop")


def test_scores_of_a_given_text(client: TestClient, service: Service) -> None:
    """As programs ask that rate models: an echo with log-probabilities, and nothing else."""
    engine = service.engine
    ids = [engine.tokenizer.bos_id or 0, *engine.tokenizer.encode(TEXT * 8)]
    assert len(ids) > 64  # more than are scored at a time
    logits = engine.session().feed(ids, logits="all")
    assert logits is not None
    scores = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    (choice,) = post(client, ids, echo=True, logprobs=1, max_tokens=0)["choices"]
    found = choice["logprobs"]
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    expected = [scores[place, token] for place, token in enumerate(ids[1:])]
    assert found["token_logprobs"][1:] == pytest.approx(expected, abs=1e-5)
    assert [max(top.values()) for top in found["top_logprobs"][1:]] == pytest.approx(
        scores[:-1].max(-1), abs=1e-5
    )
    assert choice["text"] == engine.tokenizer.decode(ids) == "".join(found["tokens"])
    assert [choice["text"][o : o + 1] for o in found["text_offset"]] == [t[:1] for t in found["tokens"]]
    (text_choice,) = post(client, TEXT * 8, echo=True, logprobs=1, max_tokens=0)["choices"]
    assert text_choice["text"] == TEXT * 8  # without the BOS that was put before it
    assert text_choice["logprobs"]["token_logprobs"] == found["token_logprobs"][1:]


def test_scores_of_prompt_and_continuation_agree(client: TestClient, service: Service) -> None:
    """What is generated with some score is scored the same when it is given."""
    engine = service.engine
    ids = [engine.tokenizer.bos_id or 0, *engine.tokenizer.encode(TEXT)]
    steps = list(engine.generate(ids, 6, Sampling(temperature=0, ignore_eos=True)))
    given = [*ids, *(step.token for step in steps)]
    (echo,) = post(client, given, echo=True, logprobs=0, max_tokens=0)["choices"]
    (made,) = post(client, ids, logprobs=0, ignore_eos=True)["choices"]
    expected = pytest.approx([step.logprob for step in steps], abs=1e-5)
    assert echo["logprobs"]["token_logprobs"][len(ids) :] == expected
    assert made["logprobs"]["token_logprobs"] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1 << 70]}, "prompt"),
        ({"prompt": [[0], []]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"suffix": "end", "echo": True}, "echo"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_nonsense_is_refused_by_name(client: TestClient, fields: dict[str, Any], param: str) -> None:
    reply = client.post("/v1/completions", json={"prompt": "Hello", **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize("more", [{}, {"echo": True, "logprobs": 1, "max_tokens": 0}, {"stream": True}])
def test_a_prompt_beyond_the_context_is_refused(client: TestClient, more: dict[str, Any]) -> None:
    reply = client.post("/v1/completions", json={"prompt": [5] * 3000, **more})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def test_the_timeout_covers_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(pocket_path(), threads=1, context=512)
    service, released, begin = Service(engine, Settings(timeout=0.2)), threading.Event(), engine.stepper.begin

    def slow(work: Any, *more: Any) -> Any:
        if any(rows > 1 for _, _, rows in work):  # scored
            released.wait(60)
        return begin(work, *more)

    monkeypatch.setattr(engine.stepper, "begin", slow)
    with TestClient(create_app(service)) as client:
        deadline = time.monotonic() + 60
        while service.state != "ready" and time.monotonic() < deadline:
            time.sleep(0.02)
        scored = {"prompt": TEXT, "echo": True, "logprobs": 0, "max_tokens": 0}
        reply = client.post("/v1/completions", json=scored)
        released.set()
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")

"""What llama.cpp's clients ask a server besides completions."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.requests import Request, Update
from penstock.engine.sampling import Sampling
from penstock.engine.steps import Step
from penstock.option import options_of
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service

PARALLEL = 2


@pytest.fixture(scope="module")
def service() -> Service:
    return Service(Engine(pocket_path(), threads=1), Settings(parallel=PARALLEL))


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service)) as client:
        yield client


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_properties(client: TestClient, service: Service) -> None:
    found = client.get("/props").json()
    assert found["default_generation_settings"]["n_ctx"] == service.engine.context
    assert found["default_generation_settings"]["params"]["temperature"] == Sampling().temperature
    assert found["total_slots"] == service.settings.parallel
    assert found["model_path"] == str(pocket_path())
    assert "deepseek-v4" in found["chat_template"]
    assert found["modalities"] == {"vision": False, "audio": False}
    assert found["is_sleeping"] is False
    own = found["penstock"]
    assert list(own["options"]) == list(options_of(EngineOptions))
    assert (own["options"]["device"], own["options"]["threads"]) == ("cpu", 1)
    assert own["settings"]["parallel"] == PARALLEL
    assert "api_keys" not in own["settings"]
    assert own["plan"]["total"] == service.engine.plan.total
    assert own["storage"]["mode"] == service.engine.plan.mode
    assert "blocks" not in own["storage"]
    assert own["fingerprint"] == service.engine.fingerprint
    assert own["sessions"]["kept"] == len(service.scheduler.prefix_cache)
    assert own["parked"] is False


# ── slots ─────────────────────────────────────────────────────────────────────────────────────────────────


class Held:
    """A request whose first token holds the scheduler until it is let go."""

    def __init__(self, service: Service, prompt: list[int], max_tokens: int):
        self.here, self.go_on, self.over = threading.Event(), threading.Event(), threading.Event()
        options = Sampling(temperature=0.0, ignore_eos=True)
        service.scheduler.submit(Request(prompt, max_tokens, options, self.tell))
        assert self.here.wait(120)

    def tell(self, update: Update) -> None:
        if isinstance(update, Step):
            self.here.set()
            self.go_on.wait(120)
            if update.finish_reason is not None:
                self.over.set()

    def finish(self) -> None:
        self.go_on.set()
        assert self.over.wait(120)


def test_idle_slots(client: TestClient, service: Service) -> None:
    found = client.get("/slots?fail_on_no_slot=1").json()
    assert [slot["id"] for slot in found] == list(range(service.settings.parallel))
    assert {slot["n_ctx"] for slot in found} == {service.engine.context}
    assert not any(slot["is_processing"] for slot in found)


def test_a_busy_slot_says_how_far_it_is(client: TestClient, service: Service) -> None:
    held = Held(service, list(range(300, 330)), 4)
    first, *others = client.get("/slots").json()
    held.finish()
    assert first["is_processing"]
    assert first["n_prompt_tokens"] == 30
    assert first["n_prompt_tokens_processed"] + first["n_prompt_tokens_cache"] == 30
    assert first["next_token"] == [{"has_next_token": True, "n_remain": 3, "n_decoded": 1}]
    assert others
    assert not any(slot["is_processing"] for slot in others)


def test_a_watcher_can_ask_for_an_error_when_no_slot_is_free() -> None:
    service = Service(Engine(pocket_path(), threads=1), Settings(parallel=1))
    with TestClient(create_app(service)) as client:
        held = Held(service, [1, 2, 3], 2)
        answer, list_of_slots = client.get("/slots?fail_on_no_slot=1"), client.get("/slots")
        held.finish()
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "unavailable_error"
    assert list_of_slots.status_code == 200


def test_erase_forgets_idle_sessions(client: TestClient, service: Service) -> None:
    Held(service, list(range(400, 440)), 1).finish()
    kept = len(service.scheduler.prefix_cache)
    assert kept > 0
    assert client.post("/slots/0?action=erase", json={}).json() == {"id_slot": 0, "n_erased": kept}
    assert client.get("/props").json()["penstock"]["sessions"]["kept"] == 0


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/slots/0?action=save", "--kv-dir"),
        ("/slots/0?action=restore", "--kv-dir"),
        ("/slots/0?action=dance", "action"),
        ("/slots/0", "action"),
        ("/slots/99?action=erase", "99"),
        ("/slots/-1?action=erase", "id_slot"),
        ("/slots/one?action=erase", "id_slot"),
    ],
)
def test_what_slots_cannot_do_is_said(client: TestClient, path: str, named: str) -> None:
    answer = client.post(path, json={})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert named in error["message"]


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────

TEXT = "Hello, 世界! <｜User｜>"


def test_text_to_tokens_and_back(client: TestClient, service: Service) -> None:
    tokens = client.post("/tokenize", json={"content": TEXT}).json()["tokens"]
    assert tokens == service.engine.tokenizer.encode(TEXT, special=True)
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": TEXT}


def test_markers_are_text_unless_asked_for(client: TestClient, service: Service) -> None:
    tokenizer = service.engine.tokenizer
    plain = client.post("/tokenize", json={"content": TEXT, "parse_special": False}).json()["tokens"]
    assert not any(map(tokenizer.is_special, plain))
    begun = client.post("/tokenize", json={"content": "a", "add_special": True}).json()["tokens"]
    assert begun == [tokenizer.bos_id, *tokenizer.encode("a")]


def test_pieces_are_text_or_bytes(client: TestClient, service: Service) -> None:
    tokenizer = service.engine.tokenizer
    half = next(id for id in range(tokenizer.vocab_size) if tokenizer.token_bytes(id) == b"\xe4")
    body = {"content": ["hi", half], "with_pieces": True}
    pieces = client.post("/tokenize", json=body).json()["tokens"]
    assert "".join(entry["piece"] for entry in pieces[:-1]) == "hi"
    assert pieces[-1] == {"id": half, "piece": [0xE4]}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 7}, "content"),
        ("/tokenize", {"content": "a", "add_special": "yes"}, "add_special"),
        ("/tokenize", {"content": [1 << 40]}, str(1 << 40)),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
        ("/detokenize", {"tokens": [1 << 70]}, str(1 << 70)),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
    ],
)
def test_nonsense_is_refused_by_name(client: TestClient, path: str, body: object, named: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


def test_half_a_character_pair_is_refused(client: TestClient) -> None:
    answer = client.post(
        "/tokenize", content=b'{"content": "\\ud800"}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400


def test_the_prompt_of_a_chat(client: TestClient) -> None:
    body: dict[str, Any] = {"messages": [{"role": "system", "content": "Be brief."}]}
    body["messages"].append({"role": "user", "content": "hi"})
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert prompt == "<｜begin▁of▁sentence｜>Be brief.<｜User｜>hi<｜Assistant｜></think>"


def test_the_prompt_of_a_chat_with_tools(client: TestClient) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert '"name": "look_up"' in prompt
    assert prompt.endswith("<｜User｜>hi<｜Assistant｜></think>")

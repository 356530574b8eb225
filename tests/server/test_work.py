"""Work of a request's size has threads and memory of its own: the event loop, and who asks for little, never wait for
it."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import pytest
from starlette.testclient import TestClient

from penstock.chat.messages import Conversation, Message, Role
from penstock.engine.engine import Engine
from penstock.errors import BusyError
from penstock.pocket import pocket_path
from penstock.server.api import llamacpp, llamacpp_tokens
from penstock.server.http import bodies, json_pieces, work
from penstock.server.http.work import SMALL, FairGate, Turn, Workers, largest_body, request_memory, share_of
from penstock.server.service import Service
from penstock.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
ASKING: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/tokenize": {"content": "Hello"},
    "/apply-template": {"messages": HELLO},
}


@pytest.mark.parametrize("path", ASKING)
def test_bodies_and_prompts_are_read_elsewhere(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, encode, check = [], Tokenizer._ids, json_pieces.check_structure

    def encoding(*args: Any) -> list[int]:
        threads.append(threading.current_thread().name)
        return encode(*args)

    def checking(*args: Any) -> int:
        threads.append(threading.current_thread().name)
        return check(*args)

    monkeypatch.setattr(Tokenizer, "_ids", encoding)
    monkeypatch.setattr(bodies, "check_structure", checking)
    assert client.post(path, json=ASKING[path]).status_code == 200
    assert len(threads) > (path != "/apply-template")
    assert {name.rsplit("_")[0] for name in threads} == {"penstock-quick"}


def test_a_large_request_takes_no_thread_of_the_small(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, encode = [], Tokenizer._ids

    def encoding(*args: Any) -> list[int]:
        threads.append(threading.current_thread().name)
        return encode(*args)

    monkeypatch.setattr(Tokenizer, "_ids", encoding)
    assert client.post("/tokenize", json={"content": "a " * SMALL}).status_code == 200
    assert {name.rsplit("_")[0] for name in threads} == {"penstock-costly"}


@contextmanager
def all_workers_busy(service: Service) -> Iterator[None]:
    over = threading.Event()
    lanes = (service.work.quick, service.work.costly)
    busy = [lane.threads.submit(over.wait, 60) for lane in lanes for _ in range(work.THREADS)]
    try:
        yield
    finally:
        over.set()
        for each in busy:
            each.result()


@pytest.mark.parametrize("path", ["/health", "/metrics", "/props", "/slots", "/v1/models"])
def test_what_watches_needs_no_worker(client: TestClient, service: Service, path: str) -> None:
    with all_workers_busy(service):
        assert client.get(path).status_code == 200


def test_parking_takes_no_thread(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait for it leave the default pool alone: here it has no thread at all."""

    def none_left(*_: Any, **__: Any) -> None:
        raise AssertionError("a thread was taken")

    monkeypatch.setattr(llamacpp, "PARKING", 0.01)
    monkeypatch.setattr(service.scheduler, "park", lambda _: None)
    monkeypatch.setattr(anyio.to_thread, "run_sync", none_left)
    assert client.post("/props", json={"parked": True}).json() == {"parked": False, "state": "ready"}


def test_work_has_a_time_limit(client: TestClient, monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    monkeypatch.setattr(work, "LONGEST", 0.01)
    with all_workers_busy(service):
        reply = client.post("/tokenize", json={"content": "Hello"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (504, "timeout_error")
    assert "0.01 seconds" in reply.json()["error"]["message"]


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_clients_take_turns() -> None:
    async def scene() -> list[str]:
        gate, served = FairGate(1), list[str]()
        await gate.take(1, Turn("first"))

        async def ask(client: str) -> None:
            await gate.take(1, Turn(client))
            served.append(client)
            gate.give(1)

        tasks = [asyncio.ensure_future(ask(client)) for client in ["many"] * 4 + ["one"] * 2]
        await asyncio.sleep(0)
        gate.give(1)
        await asyncio.gather(*tasks)
        assert (gate.used, gate.waiting) == (0, 0)
        return served

    assert asyncio.run(scene()) == ["many", "one", "many", "one", "many", "many"]


def test_small_requests_do_not_wait_for_all_large_ones_of_the_same_address() -> None:
    async def scene() -> list[int]:
        gate, served = FairGate(1), list[int]()
        await gate.take(1, Turn("a"))

        async def ask(magnitude: int) -> None:
            await gate.take(1, Turn("a", magnitude))
            served.append(magnitude)
            gate.give(1)

        tasks = [asyncio.ensure_future(ask(magnitude)) for magnitude in [20] * 4 + [12]]
        await asyncio.sleep(0)
        gate.give(1)
        await asyncio.gather(*tasks)
        return served

    assert asyncio.run(scene()) == [20, 12, 20, 20, 20]


def test_who_has_most_waiting_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_WAITING", 4)

    async def scene() -> None:
        gate = FairGate(1)
        await gate.take(1, Turn("a"))
        crowd = [asyncio.ensure_future(gate.take(1, Turn("many", at))) for at in (5, 9, 9, 5)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await gate.take(1, Turn("many"))
        one = asyncio.ensure_future(gate.take(1, Turn("one")))
        await asyncio.sleep(0)
        assert gate.waiting == 4
        gate.give(1)  # of the crowd
        gate.give(1)
        await one
        done = [task for task in crowd if task.done()]
        assert [type(task.exception()) for task in done] == [type(None), BusyError]
        assert done[1] is crowd[2]
        for task in crowd:
            task.cancel()

    asyncio.run(scene())


def test_who_goes_away_holds_up_nobody() -> None:
    async def scene() -> None:
        gate = FairGate(10)
        await gate.take(8, Turn("a"))
        large = asyncio.ensure_future(gate.take(9, Turn("b")))
        small = asyncio.ensure_future(gate.take(2, Turn("c")))
        await asyncio.sleep(0)
        assert gate.waiting == 2
        large.cancel()
        await small
        assert gate.used == 10
        gate.give(2)
        granted = asyncio.ensure_future(gate.take(9, Turn("d")))
        await asyncio.sleep(0)
        gate.give(8)
        granted.cancel()  # at the very moment when its turn comes
        with pytest.raises(asyncio.CancelledError):
            await granted
        assert gate.used == 0

    asyncio.run(scene())


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_WAITING", 1)

    async def scene() -> None:
        gate = FairGate(1)
        await gate.take(1, Turn("a"))
        waiting = asyncio.ensure_future(gate.take(1, Turn("a")))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="waiting"):
            await gate.take(1, Turn("b"))
        waiting.cancel()

    asyncio.run(scene())


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────


def test_large_requests_wait_for_memory_before_they_are_read() -> None:
    """It is given back in two steps: when the prompt is made, and when the answer is."""

    async def scene() -> None:
        workers, read = Workers(1 << 20), []

        async def ask(name: str) -> None:
            async with workers.room_for(1 << 20):
                read.append(name)

        async with (
            workers.room_for(1 << 20) as room,
            workers.room_for(SMALL),
        ):  # a small one is never in the way
            second = asyncio.ensure_future(ask("second"))
            await asyncio.sleep(0)
            assert workers.memory.used == 8 << 20
            room.shrink()
            await asyncio.sleep(0)
            assert (workers.memory.used, read) == (3 << 20, [])
        await second
        assert (workers.memory.used, read) == (0, ["second"])

    asyncio.run(scene())


def test_the_largest_body_follows_context_and_budget() -> None:
    mib = 1 << 20
    assert [largest_body(context) // mib for context in (512, 1 << 17, 1 << 24)] == [2, 4, 32]
    assert largest_body(1 << 20, share_of(600 * mib)) == 600 * mib >> 7
    assert share_of(600 * mib) < 600 * mib // 5
    assert share_of(None) == request_memory(32 * mib)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [' + b"[]," * 40_000 + b"[]]}",
        b'{"messages": [' + b'{"role":"user"},' * 40_000 + b"1]}",
        b'{"messages": [' + b"1," * 200_000 + b"1]}",
        b'{"messages": [' + b'"",' * 200_000 + b"1]}",
        json.dumps({"messages": HELLO, "stop": [str(number) for number in range(60_000)]}).encode(),
    ],
    ids=["lists", "objects", "numbers", "strings", "stops"],
)
def test_a_body_of_too_many_values_is_never_made(
    client: TestClient, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", lambda _: pytest.fail("parsed"))
        reply = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many_values")


def test_text_may_be_of_anything(client: TestClient) -> None:
    text = '[[{{"\\",,' * 12_000
    assert len(client.post("/tokenize", json={"content": text}).json()["tokens"]) > 12_000


def test_many_tokens_take_little_memory(service: Service) -> None:
    """Four bytes for each: as a list of numbers they would be forty, as JSON a thousand."""
    text, tokenizer = "x y " * 50_000, service.engine.tokenizer
    asked = Conversation((Message(Role.USER, text),))
    counting: dict[str, Callable[[], int]] = {
        "/tokenize": lambda: len(
            llamacpp_tokens._tokens(tokenizer, llamacpp_tokens.TokenizeBody(content=text))
        ),
        "count_tokens": lambda: service.driver.count(asked),
    }
    for name, count in counting.items():
        tracemalloc.start()
        found = count()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found >= 100_000, name
        assert peak < 20 * found, (name, peak)


def test_a_long_answer_of_tokens_is_what_a_short_one_is(client: TestClient) -> None:
    text = "some words, and more\n" * 1000
    ids = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert len(ids) > llamacpp_tokens.WRITTEN
    assert client.post("/detokenize", json={"tokens": ids}).json()["content"] == text
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert [each["id"] for each in pieces] == ids
    assert "".join(each["piece"] for each in pieces) == text


@pytest.mark.parametrize("prompt", [["a"] * 257, [[1]] * 257])
def test_a_request_has_so_many_prompts(client: TestClient, prompt: Any) -> None:
    reply = client.post("/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("prompt")


def test_a_prompt_beyond_the_context_is_not_read_to_its_end(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "word " * (200 << 10)
    read, inner = 0, service.engine.tokenizer._plain

    class Counting:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            nonlocal read
            read += len(texts[0])
            return inner.encode_batch_fast(texts, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    monkeypatch.setattr(service.engine.tokenizer, "_plain", Counting())
    reply = client.post(CHAT, json={"messages": [{"role": "user", "content": text}]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert read < len(text) // 2


def test_metrics_have_the_process_itself(client: TestClient) -> None:
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(lines["penstock_resident_bytes"]) > 50 << 20


def test_the_plan_has_a_line_for_requests() -> None:
    plain, serving = (
        Engine(pocket_path(), context=512, load=False, request_bytes=nbytes).plan for nbytes in (0, 64 << 20)
    )
    assert serving.requests == 64 << 20
    assert serving.total - plain.total == 64 << 20

"""Responses that are kept: read again, gone on from, deleted; within their space, and for their owner alone."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.errors import SnapshotError
from penstock.pocket import pocket_path
from penstock.server.api.responses.store import SHARE, Kept, ResponseStore
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service
from tests.server.ask_responses import FRANCE, TOOL, ask, stream

FIRST = {"role": "user", "content": FRANCE}


def error_of(reply: Any) -> tuple[int, dict[str, Any]]:
    return reply.status_code, reply.json()["error"]


def test_a_response_can_be_read_again(client: TestClient) -> None:
    for made in (ask(client, FRANCE, metadata={"a": "b"}), stream(client, FRANCE)[-1]["response"]):
        assert client.get(f"/v1/responses/{made['id']}").json() == made


def test_what_is_not_to_be_kept_is_not(client: TestClient) -> None:
    made = ask(client, FRANCE, store=False)
    assert made["store"] is False
    assert error_of(client.get(f"/v1/responses/{made['id']}"))[0] == 404


def test_an_unknown_response_in_openais_words(client: TestClient) -> None:
    gone = {"message": "Response with id 'resp_no' not found.", "type": "invalid_request_error"}
    expected = (404, {**gone, "param": None, "code": None})
    for path in ("", "/input_items"):
        assert error_of(client.get(f"/v1/responses/resp_no{path}")) == expected
    assert error_of(client.delete("/v1/responses/resp_no", headers={"x-requested-with": "x"})) == expected
    reply: Any = client.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_no"})
    status, error = error_of(reply)
    assert (status, error["code"], error["param"]) == (
        400,
        "previous_response_not_found",
        "previous_response_id",
    )


def test_a_deleted_response_is_gone(client: TestClient) -> None:
    first = ask(client, FRANCE)
    second = ask(client, "And Spain?", previous_response_id=first["id"])
    place = f"/v1/responses/{first['id']}"
    deleted = client.delete(place, headers={"content-type": "application/json"})
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert client.get(place).status_code == 404
    assert ask(client, "And Italy?", previous_response_id=second["id"])["output"]  # has all that it needs


def test_a_conversation_goes_on(client: TestClient) -> None:
    """The same prompt, and so the same answer, as if the client had sent everything."""
    first = ask(client, FRANCE, instructions="Be brief.")
    second = ask(client, "And Spain?", previous_response_id=first["id"])
    third = ask(client, "Why?", previous_response_id=second["id"], store=False)
    assert second["previous_response_id"] == first["id"]
    whole = [FIRST, *first["output"], {"role": "user", "content": "And Spain?"}, *second["output"]]
    sent = ask(client, [*whole, {"role": "user", "content": "Why?"}], store=False)
    assert third["usage"]["input_tokens"] == sent["usage"]["input_tokens"]  # instructions are not carried on
    assert [item["content"] for item in third["output"]] == [item["content"] for item in sent["output"]]
    assert third["usage"]["input_tokens_details"]["cached_tokens"] > 10


def test_calls_go_on_without_being_sent_again(client: TestClient) -> None:
    first = ask(client, "What is the weather in Paris?", tools=[TOOL])
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    assert ask(client, [result], tools=[TOOL], previous_response_id=first["id"])["output"]


def test_items_can_be_referred_to(client: TestClient) -> None:
    first = ask(client, FRANCE)
    (item,) = first["output"]
    more = {"role": "user", "content": "And Spain?"}
    by_name = ask(client, [FIRST, {"type": "item_reference", "id": item["id"]}, more])
    assert by_name["usage"]["input_tokens"] == ask(client, [FIRST, item, more])["usage"]["input_tokens"]
    body = {"input": [{"id": item["id"][:-1] + "9"}]}
    status, error = error_of(client.post("/v1/responses", json=body))
    assert (status, error["param"]) == (404, "input[0].id")


def test_input_items_page_by_page(client: TestClient) -> None:
    first = ask(client, [{"role": "developer", "content": "Be brief."}, FIRST])
    second = ask(client, "And Spain?", previous_response_id=first["id"])
    place = f"/v1/responses/{second['id']}/input_items"
    page = client.get(place, params={"order": "asc"}).json()
    assert (page["object"], page["has_more"]) == ("list", False)
    assert [item["role"] for item in page["data"]] == ["developer", "user", "assistant", "user"]
    assert page["data"][2] == first["output"][0]
    assert page["data"][1]["content"] == [{"type": "input_text", "text": FRANCE}]
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    newest = client.get(place, params={"limit": 3}).json()
    assert (newest["has_more"], newest["data"]) == (True, page["data"][:0:-1])
    rest = client.get(place, params={"after": newest["last_id"]}).json()
    assert (rest["has_more"], rest["data"]) == (False, page["data"][:1])
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}):
        status, error = error_of(client.get(place, params=wrong))
        assert (status, error["param"]) == (400, next(iter(wrong)))


def test_tokens_are_counted_before_they_are_read(client: TestClient) -> None:
    first = ask(client, FRANCE)
    body = {"input": "And Spain?", "previous_response_id": first["id"], "tools": [TOOL]}
    counted = client.post("/v1/responses/input_tokens", json=body).json()
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": ask(client, **body)["usage"]["input_tokens"],
    }


def test_only_background_responses_can_be_cancelled(client: TestClient) -> None:
    place = f"/v1/responses/{ask(client, FRANCE)['id']}/cancel"
    status, error = error_of(client.post(place, json={}))
    assert (status, error["message"]) == (400, "Cannot cancel a synchronous response.")


def test_openais_own_client(client: TestClient) -> None:
    openai = OpenAI(api_key="x", base_url="http://127.0.0.1/v1", http_client=client)  # type: ignore[arg-type]
    first = openai.responses.create(model="m", input=FRANCE)
    second = openai.responses.create(model="m", input="And Spain?", previous_response_id=first.id)
    assert openai.responses.retrieve(second.id).output_text == second.output_text
    assert [item.type for item in openai.responses.input_items.list(second.id)] == ["message"] * 3
    assert openai.responses.input_tokens.count(model="m", input=FRANCE).input_tokens > 5
    openai.responses.delete(first.id)


def test_one_key_cannot_see_what_another_made() -> None:
    service = Service(
        Engine(pocket_path(), threads=1, context=256), Settings(api_keys=("ann", "bob"), max_tokens=3)
    )
    with TestClient(create_app(service)) as client:

        def call(key: str, method: str, path: str, body: Any = None) -> Any:
            return client.request(method, path, json=body, headers={"authorization": f"Bearer {key}"})

        id = call("ann", "POST", "/v1/responses", {"input": "Hi"}).json()["id"]
        assert call("ann", "GET", f"/v1/responses/{id}").status_code == 200
        assert call("bob", "GET", f"/v1/responses/{id}").status_code == 404
        assert call("bob", "DELETE", f"/v1/responses/{id}").status_code == 404
        body = {"input": "x", "previous_response_id": id}
        assert call("bob", "POST", "/v1/responses", body).status_code == 400
        assert call("ann", "POST", "/v1/responses", body).status_code == 200


# ── space ─────────────────────────────────────────────────────────────────────────────────────────────────


def kept(number: int, size: int = 20_000) -> Kept:
    noise = "".join(
        f"{(number * 7919 + i * i) % 99991:x}" for i in range(size // 4)
    )  # does not compress well
    return Kept({"id": f"resp_{number}", "output": []}, [{"id": "x", "type": "message", "text": noise}])


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_oldest_leave_first_and_space_is_kept(tmp_path: Path, on_disk: bool) -> None:
    told: list[int] = []
    file = tmp_path / "kv" / "responses.sqlite" if on_disk else None
    store = ResponseStore(file, 200_000, tell=told.append)
    for number in range(60):
        assert store.keep("", kept(number))
        assert store.bytes == told[-1] <= 200_000
        if file is not None:
            assert file.stat().st_size <= 200_000
    found = [number for number in range(60) if store.find("", f"resp_{number}")]
    assert found == list(range(found[0], 60))
    assert 0 < found[0] < 58
    before = store.bytes
    assert store.remove("", "resp_59")
    assert store.bytes < before
    assert not store.keep("", kept(1, 2_000_000))
    assert not store.remove("", "resp_59")


def test_a_file_is_private_and_outlives_its_server(tmp_path: Path) -> None:
    file = tmp_path / "kv" / "responses.sqlite"
    store = ResponseStore(file, 1 << 20)
    store.keep("ann", kept(1))
    store.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    again = ResponseStore(file, 1 << 20)
    assert again.find("ann", "resp_1") == kept(1)
    assert again.find("bob", "resp_1") is None
    again.remove("ann", "resp_1")
    again.close()
    assert b"resp_1" not in file.read_bytes()


@pytest.mark.parametrize("damage", [b"no database", b""])
def test_a_damaged_file_costs_what_was_in_it(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "responses.sqlite"
    file.write_bytes(damage * 1000)
    store = ResponseStore(file, 1 << 20)
    assert store.find("", "resp_1") is None
    assert store.keep("", kept(1))
    assert store.find("", "resp_1") == kept(1)


def test_a_row_that_somebody_has_changed_is_not_believed(client: TestClient, service: Service) -> None:
    made = {"id": "resp_changed", "output": [{"id": "msg_1", "type": "poem"}]}
    assert service.responses.keep("", Kept(made, []))
    reply: Any = client.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_changed"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_a_disk_without_room_costs_the_new_one_only(tmp_path: Path) -> None:
    def full(_: int) -> None:
        raise SnapshotError("no room")

    store = ResponseStore(tmp_path / "responses.sqlite", 1 << 20, make_room=full)
    assert not store.keep("", kept(1))
    assert store.find("", "resp_1") is None


def test_they_are_part_of_what_sessions_may_take(tmp_path: Path) -> None:
    engine = Engine(pocket_path(), threads=1, context=256)
    service = Service(engine, Settings(max_tokens=3))
    with TestClient(create_app(service)) as client:
        cache = service.scheduler.prefix_cache
        assert service.responses.space == cache.budget // SHARE
        assert cache.others == 0
        client.post("/v1/responses", json={"input": "Hi"})
        assert 0 < cache.others == service.responses.bytes
    engine = Engine(pocket_path(), threads=1, context=256)
    service = Service(engine, Settings(max_tokens=3, kv_dir=tmp_path, kv_space=1 << 26))
    with TestClient(create_app(service)) as client:
        made = client.post("/v1/responses", json={"input": "Hi"}).json()
        assert service.responses.space == (1 << 26) // SHARE
        disk = service.scheduler.prefix_cache.disk
        assert disk is not None
        assert disk.store.others >= service.responses.bytes > 0
    service = Service(
        Engine(pocket_path(), threads=1, context=256), Settings(kv_dir=tmp_path, kv_space=1 << 26)
    )
    with TestClient(create_app(service)) as client:
        assert client.get(f"/v1/responses/{made['id']}").json() == json.loads(json.dumps(made))

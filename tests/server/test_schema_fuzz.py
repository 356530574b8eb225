"""Whatever a client sends, the server answers it, and not with 500."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service

HELLO: Final = [{"role": "user", "content": "Hello"}]
# A request for each endpoint that it answers with 200.
POSTS: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"content": "Hello"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": HELLO},
    "/slots/0?action=erase": {},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/completion": {"prompt": "Hello"},
    "/completions": {"prompt": "Hello"},
    "/infill": {"input_prefix": "a = 1", "input_suffix": "c = 3"},
    "/api/chat": {"model": "m", "messages": HELLO},
    "/api/generate": {"model": "m", "prompt": "Hello"},
    "/api/show": {"model": "deepseek-v4"},
    "/api/pull": {"model": "deepseek-v4"},
    "/props": {"parked": False},
}
STREAMS: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/completion", "/completions", "/infill", "/api/chat", "/api/generate"),
)
FIELDS: Final = (
    *("messages", "prompt", "input", "system", "instructions", "model", "content", "tokens", "role", "type"),
    *(
        "stream",
        "stream_options",
        "include_usage",
        "n",
        "best_of",
        "echo",
        "suffix",
        "logprobs",
        "top_logprobs",
    ),
    *(
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "stop",
        "stop_sequences",
        "seed",
        "logit_bias",
    ),
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"),
    *(
        "tools",
        "tool_choice",
        "tool_calls",
        "tool_call_id",
        "parallel_tool_calls",
        "function",
        "name",
        "arguments",
    ),
    *("response_format", "text", "format", "json_schema", "schema", "thinking", "think", "reasoning"),
    *(
        "reasoning_effort",
        "reasoning_content",
        "output_config",
        "metadata",
        "user",
        "store",
        "include",
        "filename",
    ),
    *(
        "add_special",
        "parse_special",
        "with_pieces",
        "parked",
        "ignore_eos",
        "grammar",
        "chat_template_kwargs",
    ),
    *("previous_response_id", "background", "truncation", "conversation", "source", "custom", "call_id"),
    *("n_predict", "n_probs", "id_slot", "response_fields", "n_indent", "t_max_predict_ms", "n_cmpl"),
    *("input_prefix", "input_suffix", "input_extra", "cache_prompt", "return_tokens", "mirostat", "lora"),
    *("options", "num_predict", "keep_alive", "images", "raw", "context", "template", "tool_name"),
)
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES: Final = 25
FEWER: Final = {
    "/props": 8,
    "/apply-template": 10,
    "/v1/messages/count_tokens": 10,
    "/v1/responses/input_tokens": 10,
    "/completions": 5,
    "/infill": 10,
    "/api/generate": 10,
    "/api/pull": 5,
    "/api/show": 5,
}  # slow, or tried elsewhere too
ANY_TIME: Final = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Answers are short, and nobody waits for one for long."""
    engine = Engine(pocket_path(), threads=1, context=256)
    service = Service(engine, Settings(max_tokens=4, timeout=300, max_body=1 << 20))
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client


class Lifeless:
    """An application that somebody else starts and ends."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.app(scope, receive, send)
            return
        for what in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{what}.complete"})


@pytest.fixture(scope="module")
def described(client: TestClient) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", Lifeless(client.app))


OPERATIONS: Final = (
    ("GET", "/health"),
    ("GET", "/v1/health"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("POST", "/slots/{id_slot}"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/api/version"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("POST", "/v1/embeddings"),
    *(("POST", path) for path in POSTS if "?" not in path),
)


def test_all_operations_are_tried(described: Any) -> None:
    found = {
        (operation.ok().method.upper(), operation.ok().path) for operation in described.get_all_operations()
    }
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_are_described(described: Any, method: str, path: str) -> None:
    fuzz(described, method, path, FEWER.get(path, EXAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_many_requests_that_are_described(described: Any, method: str, path: str) -> None:
    fuzz(described, method, path, 1000)


def fuzz(described: Any, method: str, path: str, examples: int) -> None:
    strategy = described[path][method].as_strategy()

    @settings(max_examples=examples, deadline=None, suppress_health_check=ANY_TIME, database=None)
    @given(case=strategy, stream=st.booleans())
    def answered(case: Any, stream: bool) -> None:
        if path in STREAMS and isinstance(case.body, dict):
            case.body["stream"] = stream
        case.call_and_validate(checks=CHECKS)

    answered()


# ── nothing but JSON, and less than that ──────────────────────────────────────────────────────────────────

NUMBERS = st.integers() | st.integers(-3, 300) | st.floats()  # JSON has no NaN, but Python sends and reads it
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "auto", "required", "user", "assistant", "tool", "\ud800", "{}"]
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
NAMES = st.sampled_from(FIELDS) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", POSTS)
def test_a_request_with_fields_that_make_no_sense(client: TestClient, path: str) -> None:
    send_changed(client, path, 20 if path in FEWER else 60)


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTS)
def test_many_requests_with_fields_that_make_no_sense(client: TestClient, path: str) -> None:
    send_changed(client, path, 5000)


def send_changed(client: TestClient, path: str, examples: int) -> None:
    """A good request in which some fields are something else."""
    fields = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3)

    @settings(max_examples=examples, deadline=None, suppress_health_check=ANY_TIME, database=None)
    @given(changes=fields)
    def answered(changes: dict[str, Any]) -> None:
        check(client, path, json.dumps({**POSTS[path], **changes}).encode())

    assert client.post(path, json=POSTS[path]).status_code == 200
    answered()


@settings(max_examples=300, deadline=None, suppress_health_check=ANY_TIME, database=None)
@given(
    path=st.sampled_from(list(POSTS)), body=VALUES.map(lambda value: json.dumps(value).encode()) | st.binary()
)
def test_bodies_that_are_no_request(client: TestClient, path: str, body: bytes) -> None:
    check(client, path, body)


def check(client: TestClient, path: str, body: bytes) -> None:
    reply: Any = client.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (200, 400, 404), reply.text
    if reply.status_code != 200:
        error = reply.json()["error"]
        assert error if path.startswith("/api/") else error["message"]
    else:
        assert "internal_error" not in reply.text

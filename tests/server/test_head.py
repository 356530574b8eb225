"""HEAD answers as GET does, without a body."""

from typing import Any

import pytest
from starlette.testclient import TestClient


@pytest.mark.parametrize(
    "path",
    ["/", "/health", "/props", "/slots", "/metrics", "/v1/models", "/v1/models/deepseek-v4", "/v1/models/x"],
)
def test_head(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_every_get_has_a_head(client: TestClient) -> None:
    app: Any = client.app
    described = app.openapi()["paths"]
    for path in (path for path, methods in described.items() if "get" in methods):
        assert client.head(path.replace("{", "").replace("}", "")).status_code != 405, path


def test_a_stream_is_not_waited_for(client: TestClient) -> None:
    assert client.head("/dashboard/events").headers["content-type"].startswith("text/event-stream")


def test_there_is_no_head_of_a_post(client: TestClient) -> None:
    assert client.head("/v1/chat/completions").status_code == 405

"""One server for all tests, on the pocket model."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.engine.requests import Failed
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service


@pytest.fixture(scope="session")
def service() -> Service:
    return Service(Engine(pocket_path(), threads=1, context=2048), Settings(max_body=1 << 20))


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def failing_steps(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer fails where its first token should come."""
    submit = service.scheduler.submit

    def failing(asked: Any) -> None:
        emit = asked.emit

        def broken(update: Any) -> None:
            emit(Failed(PenstockError("the disk is gone")) if isinstance(update, Step) else update)

        asked.emit = broken
        submit(asked)

    monkeypatch.setattr(service.scheduler, "submit", failing)


def events(text: str) -> list[Any]:
    """The payloads of a stream, comments left out; `[DONE]` as it is."""
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in found]

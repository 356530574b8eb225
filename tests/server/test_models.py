"""GET /v1/models."""

from starlette.testclient import TestClient

from penstock.pocket import pocket_path
from penstock.server.service import Service


def test_the_model_is_listed_with_what_it_can_read(client: TestClient, service: Service) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert {"id", "object", "created", "owned_by"} < set(model)
    assert model["max_model_len"] == model["context_length"] == model["meta"]["n_ctx"] == 2048
    assert model["meta"]["n_ctx_train"] == service.engine.config.context_length
    assert 20e6 < model["meta"]["n_params"] < 22e6
    assert model["meta"]["size"] < pocket_path().stat().st_size
    assert client.get(f"/v1/models/{model['id']}").json() == model


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    reply = client.get("/v1/models/some/other")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"

"""GET /v1/models."""

from starlette.testclient import TestClient


def test_the_model_is_listed_with_four_fields(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert set(model) == {"id", "object", "created", "owned_by"}
    assert client.get(f"/v1/models/{model['id']}").json() == model


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    reply = client.get("/v1/models/some/other")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"

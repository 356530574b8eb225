"""GET /v1/models: what can be asked for.  There is one model; requests may call it what they like."""

from typing import Any, Final

from fastapi import APIRouter, Request

from penstock.server.errors import ApiError
from penstock.server.service import Service

router = APIRouter()

ALIASES: Final = {
    "deepseek-chat": False,
    "deepseek-reasoner": True,
}  # DeepSeek's own names → whether it thinks


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    service: Service = request.app.state.service
    return {"object": "list", "data": [_card(service, service.settings.name)]}


@router.get("/v1/models/{name:path}")
async def show_model(name: str, request: Request) -> dict[str, Any]:
    service: Service = request.app.state.service
    if name != service.settings.name and name not in ALIASES:
        message = f"there is no model {name!r}; this server has {service.settings.name!r}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _card(service, name)


def _card(service: Service, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.created, "owned_by": "penstock"}

"""All endpoints, API by API."""

from fastapi import APIRouter

from penstock.server import (
    anthropic,
    dashboard,
    llamacpp,
    metrics,
    models,
    openai_chat,
    openai_completions,
    responses,
    slots,
    tokens,
)

ALL: list[APIRouter] = [
    anthropic.router,
    responses.router,
    models.router,
    openai_chat.router,
    openai_completions.router,
    llamacpp.router,
    slots.router,
    tokens.router,
    metrics.router,
    dashboard.router,
]

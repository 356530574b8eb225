"""JSON on its way out, for the APIs whose events carry their own name."""

import json
from typing import Any

from fastapi import Response


def sse_event(event: dict[str, Any]) -> str:
    """A server-sent event that is called by the `type` of what it carries."""
    return f"event: {event['type']}\ndata: {_ascii(event)}\n\n"


def reply(body: dict[str, Any]) -> Response:
    return Response(_ascii(body), media_type="application/json")


def _ascii(value: dict[str, Any]) -> str:
    """Everything else is escaped: half of a surrogate pair, which JSON can name, has no UTF-8."""
    return json.dumps(value, separators=(",", ":"))

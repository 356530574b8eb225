"""Errors in each API's own envelope and status."""

import logging
from pathlib import PurePath
from typing import Any, Final

from fastapi.responses import JSONResponse

from penstock.errors import (
    BusyError,
    ClusterError,
    ContextLengthError,
    OptionError,
    PenstockError,
    ShutdownError,
    TokenError,
)
from penstock.server.http.request_context import current_request

RETRY_AFTER: Final = 2  # seconds
FILES: Final = (".gguf", ".json", ".pack", ".safetensors")


class ApiError(Exception):
    """An answer other than success.  `code` is what a program looks at, `param` the field that is to blame,
    `retry_after` the seconds after which it may be another."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int = RETRY_AFTER,
        **extra: Any,
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.extra = status, message, code, param, extra
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        """One of few words, for metrics and logs."""
        return self.code or KINDS.get(self.status, "other")


# What is too long for the context, in the words of the API that a path belongs to.
PROMPTS: Final = {
    "/v1/completions": "prompt",
    "/completion": "prompt",
    "/completions": "prompt",
    "/infill": "input_prefix",
    "/v1/responses": "input",
    "/api/generate": "prompt",
}


def api_error(error: PenstockError, path: str = "") -> ApiError:
    """What an error of the engine is for a client.  Where the server's files are is none of a client's business: the
    log has what is left out here."""
    status, code = _status(error)
    message = _without_file(str(error))
    if code == "unavailable":
        logging.getLogger(__name__).error("%s: %s", type(error).__name__, error)
        if "/" in message or isinstance(error, ClusterError):  # which machines there are is nobody's business
            message = "the server cannot answer this now; its log says why"
    too_long = code == "context_length_exceeded"
    return ApiError(status, message, code=code, param=PROMPTS.get(path, "messages") if too_long else None)


def kind_of(error: BaseException) -> str:
    """The kind of any error, for metrics and logs."""
    if isinstance(error, ApiError):
        return error.kind
    return _status(error)[1] if isinstance(error, PenstockError) else "internal_error"


def _status(error: PenstockError) -> tuple[int, str]:
    match error:
        case ContextLengthError():
            return 400, "context_length_exceeded"
        case BusyError():
            return 429, "queue_full"
        case ShutdownError():
            return 503, "shutting_down"
        case OptionError() | TokenError():
            return 400, "invalid_value"
        case _:
            return 503, "unavailable"


def _without_file(message: str) -> str:
    """
    >>> _without_file("/models/pocket.gguf: token id: expected 0 to 511; found 600")
    'token id: expected 0 to 511; found 600'
    """
    head, _, rest = message.partition(": ")
    names_file = "/" in head or PurePath(head).suffix in FILES
    return rest if rest and names_file else message


KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "unavailable_error",
    504: "timeout_error",
}


def openai_envelope(error: ApiError) -> dict[str, Any]:
    kind = {404: "invalid_request_error"}.get(error.status, KINDS.get(error.status, "api_error"))
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
            **error.extra,
        }
    }


def anthropic_envelope(error: ApiError) -> dict[str, Any]:
    kind = {503: "overloaded_error"}.get(error.status, KINDS.get(error.status, "api_error"))
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def llamacpp_envelope(error: ApiError) -> dict[str, Any]:
    kind = KINDS.get(error.status, "server_error")
    return {"error": {"code": error.status, "message": error.message, "type": kind}}


def ollama_envelope(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


def is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def envelope(path: str, error: ApiError) -> dict[str, Any]:
    """The error in the words of the API that the path belongs to."""
    if is_anthropic(path):
        return anthropic_envelope(error)
    if path.startswith("/v1/"):
        return openai_envelope(error)
    if path.startswith("/api/"):
        return ollama_envelope(error)
    return llamacpp_envelope(error)


def respond(path: str, error: ApiError) -> JSONResponse:
    """The error as the answer to a request."""
    context = current_request()
    if context is not None:
        context.error = error.kind
    headers = {"Retry-After": str(error.retry_after)} if error.status in (429, 503) else {}
    if error.status == 408:
        headers["Connection"] = "close"  # whatever still comes, nobody reads it
    return JSONResponse(envelope(path, error), error.status, headers)

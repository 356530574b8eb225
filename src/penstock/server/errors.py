"""What went wrong, in each API's own words and status."""

from typing import Any

from penstock.errors import BusyError, ContextLengthError, OptionError, PenstockError, TokenError


class ApiError(Exception):
    """An answer other than success.  `code` is what a program looks at, `param` the field that is to blame."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, **extra: Any
    ):
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.extra = status, message, code, param, extra


def api_error(error: PenstockError) -> ApiError:
    """What an error of the engine is for a client."""
    match error:
        case ContextLengthError():
            return ApiError(400, str(error), code="context_length_exceeded", param="messages")
        case BusyError():
            return ApiError(429, str(error), code="queue_full")
        case OptionError() | TokenError():
            return ApiError(400, str(error), code="invalid_value")
        case _:
            return ApiError(503, str(error), code="unavailable")


KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "unavailable_error",
}


def openai_envelope(error: ApiError) -> dict[str, Any]:
    kind = KINDS.get(error.status, "api_error")
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

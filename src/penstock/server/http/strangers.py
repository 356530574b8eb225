"""Web pages that would speak to the server in their visitor's name.

A browser sends whatever a page asks for, from the visitor's own machine.  Two things give such a page away: the name
under which it found the server (`Host`: a name of its own that resolves to this machine), and where it comes from
(`Origin`, which browsers send with everything that changes something).  A form, which needs nobody's leave, can send
neither JSON nor a header of its own.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from penstock.server.http.errors import ApiError
from penstock.server.http.settings import Settings

READING: Final = ("GET", "HEAD", "OPTIONS")
# A page cannot send these without the server's leave.
OWN_HEADERS: Final = ("authorization", "x-api-key", "x-requested-with")


def refusal_of_stranger(scope: Scope, headers: Headers, settings: Settings) -> ApiError | None:
    """Why a request is not answered; None if it is."""
    host = headers.get("host", "")
    if host and not _is_ours(host_name(host), scope, settings):
        text = f"this server does not answer to the name {host[:80]!r}; --allowed-host adds one"
        return ApiError(421, text, code="misdirected_request")
    if scope["method"] in READING:
        return None
    origin = headers.get("origin")
    if origin is not None and not _is_welcome(origin, host, settings):
        text = f"pages of {origin[:80]!r} may not ask this server for anything; --cors lets them"
        return ApiError(403, text, code="foreign_origin")
    if not is_json(headers) and not any(name in headers for name in OWN_HEADERS):
        text = "a request that changes something needs the header 'content-type: application/json'"
        return ApiError(415, text, code="unsupported_media_type")
    return None


def host_name(host: str) -> str:
    """The name in a `Host` header, without its port.

    >>> host_name("Localhost:8080"), host_name("[::1]:8080"), host_name("box.lan.")
    ('localhost', '::1', 'box.lan')
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def _is_ours(name: str, scope: Scope, settings: Settings) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    server = scope.get("server")
    own = {settings.host.lower(), *settings.allowed_hosts, *([str(server[0])] if server else [])}
    if "*" in own or name in own:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_welcome(origin: str, host: str, settings: Settings) -> bool:
    """The server's own page, and those of origins that it was told of."""
    try:
        same = urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        same = False
    return (bool(host) and same) or origin in settings.cors or "*" in settings.cors


def is_json(headers: Headers) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")

"""GET /: a page to talk to the model and to watch the engine; and Markdown, rendered for it.

The page and its parts are for everybody; whatever it asks for needs the key.
"""

from importlib import resources
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError
from penstock.server.http.streams import json_reply
from penstock.server.page.renderer import Renderer

ASSETS: Final = "/dashboard/assets/"
KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".html": "text/html"}
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
LONGEST: Final = 1 << 16  # characters of a text; the page sends longer ones in parts

router = APIRouter(route_class=BodyRoute)


@router.get("/", include_in_schema=False)
def page() -> Response:
    return _file("index.html")


@router.get(ASSETS + "{name}", include_in_schema=False)
def asset(name: str) -> Response:
    return _file(name)


def _file(name: str) -> Response:
    """Of the package, never of anywhere else: only names that are listed there are opened."""
    kind = KINDS.get(name[name.rfind(".") :])
    for file in (resources.files("penstock.server.page") / "static").iterdir():
        if file.name == name and kind is not None:
            return Response(file.read_bytes(), media_type=kind, headers=HEADERS)
    raise ApiError(404, f"there is no {name!r}", code="not_found")


class MarkdownBody(BaseModel):
    text: Annotated[str, Field(strict=True, max_length=LONGEST)]


@router.post("/dashboard/markdown", include_in_schema=False)
async def markdown(body: MarkdownBody, request: Request) -> Response:
    """The top-level blocks of a text: [line that it begins at, tree of elements, whether it is code without an end].
    For the page alone, also where --cors lets others ask."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ApiError(403, "only the server's own page has its texts rendered here", code="foreign_origin")
    renderer: Renderer = request.app.state.renderer
    return json_reply({"blocks": await renderer.render(body.text)})

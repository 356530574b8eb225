"""Asking the hub: where it is, who asks, and what its refusals mean.  `huggingface_hub` brings the connection, the
token and the headers; it is imported when somebody asks, never before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from penstock.errors import HubError
from penstock.hub.listing import Listing, RemoteFile, parse_listing

if TYPE_CHECKING:
    import httpx

HUB: Final = "https://huggingface.co"
REVISION: Final = "main"
TIMEOUT: Final = 15.0  # seconds without a byte
_MOST_ANSWER: Final = 64 << 20  # bytes of a listing
_TRUE: Final = ("1", "on", "yes", "true")


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def is_offline() -> bool:
    return any(
        os.environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def session() -> "httpx.Client":
    """The connections of `huggingface_hub`, with what a company may have set for them."""
    if is_offline():
        raise HubError("HF_HUB_OFFLINE is set, so nothing is asked of the hub; unset it to download")
    from huggingface_hub import get_session

    return get_session()


def headers() -> dict[str, str]:
    """Who asks, with the token of HF_TOKEN or of `hf auth login`.  Nothing is compressed: sizes must be real."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    import penstock

    made = build_hf_headers(library_name="penstock", library_version=penstock.__version__)
    return {**made, "Accept-Encoding": "identity"}


def list_files(repo: str) -> Listing:
    """What the repository holds now."""
    url = f"{endpoint()}/api/models/{repo}/revision/{REVISION}"
    client = session()
    with failures(repo):
        response = client.get(
            url, params={"blobs": "true"}, headers=headers(), timeout=TIMEOUT, follow_redirects=True
        )
    check(response, repo)
    if len(response.content) > _MOST_ANSWER:
        raise HubError(
            f"{repo}: the hub's answer has {len(response.content):,} bytes, too many for a listing"
        )
    return parse_listing(response.content, repo)


def file_url(listing: Listing, file: RemoteFile) -> str:
    """Of this very commit, so that what is there stays the same while it is read."""
    return f"{endpoint()}/{listing.repo}/resolve/{listing.commit}/{quote(file.path)}"


def check(response: "httpx.Response", repo: str, file: str = "") -> None:
    """Raises HubError for an answer that is a refusal, with what can be done about it."""
    status, code = response.status_code, response.headers.get("X-Error-Code", "")
    if status < 400:
        return
    page = f"{endpoint()}/{repo}"
    if code == "GatedRepo" or status == 403:
        raise HubError(
            f"{repo}: access has to be asked for at {page}; then HF_TOKEN must hold a token of that account"
        )
    if code == "EntryNotFound" or (status == 404 and file):
        raise HubError(f"{repo}: there is no file {file!r} in it")
    if status in (401, 404):
        raise HubError(
            f"{repo}: no such public repository at {endpoint()}; for a private one HF_TOKEN must hold a token that "
            "may read it"
        )
    if status == 429:
        raise HubError(f"{repo}: the hub wants fewer requests; wait some minutes, or set HF_TOKEN")
    raise HubError(f"{repo}: the hub answered {status} {response.reason_phrase}; try again later")


@contextmanager
def failures(repo: str) -> Iterator[None]:
    """Around a request: a connection that fails becomes a HubError."""
    import httpx

    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HubError(f"{repo}: no answer from {endpoint()}: {str(error) or type(error).__name__}") from None

"""The server that a client is to use: where it is, and what it says about itself."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from penstock.errors import OptionError, PenstockError

MODEL: Final = "deepseek-v4"  # what `penstock serve` calls its model
CONTEXT: Final = 65_536
ANY_KEY: Final = "penstock"  # clients want one, also where the server does not
PATIENCE: Final = 5.0  # seconds


class Served(NamedTuple):
    """A model that a server runs on this machine's processor: the file, the budget and the longest context."""

    path: Path
    memory: int | None
    context: int


@dataclass(frozen=True, slots=True)
class Target:
    """url without a path; key: None where the server needs none; reached: whether it was asked and has answered.

    prefill     tokens of a prompt that it reads in a second, if it knows
    pinned      tokens of clients' prompts that it keeps, by label
    on_disk     whether they outlive it
    served      what it runs, if that is here
    """

    url: str
    model: str = MODEL
    context: int = CONTEXT
    key: str | None = None
    reached: bool = False
    prefill: float | None = None
    pinned: Mapping[str, int] = field(default_factory=dict)
    on_disk: bool = False
    served: Served | None = None

    @property
    def openai(self) -> str:
        return f"{self.url}/v1"

    @property
    def token(self) -> str:
        return self.key or ANY_KEY

    @property
    def output(self) -> int:
        """Tokens of an answer that clients may plan with.  What is left of the context is for their prompts."""
        return min(32_768, max(1, self.context // 4))


def find(url: str, model: str | None = None, key: str | None = None) -> Target:
    """The server at the address.  What it does not tell, because it does not run now, is assumed."""
    base = _base(url)
    try:
        name = model or str(_ask(f"{base}/v1/models", key)["data"][0]["id"])
        props = _ask(f"{base}/props", key)
        context = int(props["default_generation_settings"]["n_ctx"])
        own = props.get("penstock", {})
        prefill = own.get("scheduler", {}).get("prefill_per_second")
        pinned = {
            str(label): int(tokens) for label, tokens in own.get("sessions", {}).get("pinned", {}).items()
        }
        on_disk = "disk" in own.get("sessions", {})
        served = _served(base, props)
    except PenstockError:
        raise
    except (OSError, HTTPException):
        return Target(base, model or MODEL, key=key)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise PenstockError(f"--url {url}: what answers there is no Penstock server") from None
    pace = None if prefill is None else float(prefill)
    return Target(base, name, context, key, True, pace, pinned, on_disk, served)


def _served(base: str, props: dict[str, Any]) -> Served | None:
    """Nothing where the model is elsewhere, in part or as a whole: on another machine, in a cluster or on a card."""
    own, path = props.get("penstock", {}), Path(props.get("model_path", ""))
    plan = own.get("plan", {})
    near = (
        urlsplit(base).hostname in ("127.0.0.1", "localhost", "::1") and path.is_absolute() and path.exists()
    )
    if not near or plan.get("mode") not in ("mmap", "direct") or own.get("options", {}).get("cluster"):
        return None
    return Served(path, plan["budget"], int(props["default_generation_settings"]["n_ctx"]))


def call(target: Target, path: str, body: Any = None) -> Any:
    """What the server answers to a request of Penstock's own; with a body it is a POST.  OSError if it does not."""
    return _ask(f"{target.url}{path}", target.key, body)


def _base(url: str) -> str:
    """Without the path that OpenAI's clients put after it.

    >>> _base("http://127.0.0.1:8080/v1/")
    'http://127.0.0.1:8080'
    """
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise OptionError(f"--url is {url!r}, expected an address such as http://127.0.0.1:8080")
    return base


def _ask(url: str, key: str | None, body: Any = None) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    opener = build_opener(ProxyHandler({}))  # the server is on this machine or near it
    try:
        with opener.open(Request(url, data, headers), timeout=PATIENCE) as answer:
            return json.load(answer)
    except HTTPError as error:
        if error.code in (401, 403):
            raise OptionError(f"--api-key is missing or wrong: {url} answers {error.code}") from None
        raise PenstockError(f"{url} answers {error.code}: is that a Penstock server?") from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            text = "its certificate is not trusted here; SSL_CERT_FILE can name a file of those that are"
            raise OptionError(f"{url}: {text} ({error.reason.verify_message})") from None
        raise OSError(error.reason) from None

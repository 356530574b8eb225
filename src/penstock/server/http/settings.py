"""How a server is run: one value that the command line and tests share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.errors import OptionError

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked on creation.

    host, port      where to listen; beyond this machine only with a key
    name            what the model is called
    api_keys        requests need one of them; none: everybody may ask
    parallel        requests that are answered at a time
    queue           requests that may wait
    max_body        bytes of a request
    body_timeout    seconds that a request's head, and then its body, may take to arrive
    max_tokens      most tokens of an answer, whatever is asked for
    timeout         seconds that a request may take in all; 0: no limit
    cors            origins that browsers may call from
    metrics         whether /metrics answers
    ping            seconds between signs of life while a prompt is read
    kv_dir          folder where sessions are saved, also for after a restart; None: nowhere
    kv_space        bytes that they may take there
    park_after      seconds without requests after which the weights leave memory; 0: never
    trace_requests  file that everything is written to that is asked and answered; None: nowhere
    """

    host: str = "127.0.0.1"
    port: int = 8080
    name: str = "deepseek-v4"
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    parallel: int = 8
    queue: int = 64
    max_body: int = 64 << 20
    body_timeout: float = 30.0
    max_tokens: int = 1 << 20
    timeout: float = 0.0
    cors: tuple[str, ...] = ()
    metrics: bool = True
    ping: float = 5.0
    kv_dir: Path | None = None
    kv_space: int = 16 << 30
    park_after: float = 0.0
    trace_requests: Path | None = None

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.api_keys:
            raise OptionError(
                f"--host {self.host} is open to others than this machine, so --api-key is needed as well"
            )
        for name, low in (("port", 0), ("parallel", 1), ("queue", 0), ("max_body", 1024), ("max_tokens", 1)):
            if getattr(self, name) < low:
                raise OptionError(f"{name} is {getattr(self, name)!r}, expected a whole number from {low}")
        for name in ("timeout", "body_timeout", "park_after", "ping"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OptionError(f"{name} is {getattr(self, name)!r}, expected a number of seconds")
        if self.kv_space < 1:
            raise OptionError(f"kv_space is {self.kv_space!r}, expected a number of bytes")
        if any(not key for key in self.api_keys):
            raise OptionError("an API key is empty")

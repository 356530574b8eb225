"""How a server is run: one value that the command line and tests share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.environment import API_KEY
from penstock.errors import OptionError
from penstock.option import check, file, option, seconds, size, switch, text, texts, whole

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

SERVER: Final[dict[str, Any]] = {"group": "Server", "commands": ("serve",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked on creation.  A new setting is one more field: see `penstock.engine.options`."""

    host: str = option(
        "127.0.0.1",
        text(),
        "Address to listen on; beyond this machine only with a key, or --no-key.",
        **SERVER,
    )
    port: int = option(8080, whole(0, 65535), "Port to listen on; 0 takes a free one.", **SERVER)
    name: str = option("deepseek-v4", text(), "What the model is called.", **SERVER)
    api_keys: tuple[str, ...] = option(
        (),
        texts(),
        f"A key that opens the server; may be repeated.  Also from {API_KEY.name}.",
        flags=("--api-key",),
        secret=True,
        **SERVER,
    )
    api_key_file: Path | None = option(
        None,
        file(),
        "A file of keys, one in each line: KEY, or NAME KEY [concurrency=N] [tokens_per_minute=N]; read again on "
        "SIGHUP.",
        unset="none",
        **SERVER,
    )
    no_key: bool = option(
        False,
        switch(),
        "Whoever can reach the server may use it: no key is needed beyond this machine.",
        **SERVER,
    )
    tls_cert: Path | None = option(
        None, file(), "Speak HTTPS with this certificate (PEM, with its chain).", unset="HTTP", **SERVER
    )
    tls_key: Path | None = option(None, file(), "The certificate's key (PEM).", unset="none", **SERVER)
    parallel: int = option(8, whole(1), "Requests answered at a time.", **SERVER)
    queue: int = option(64, whole(0), "Requests that may wait.", **SERVER)
    max_tokens: int = option(1 << 20, whole(1), "Most tokens of an answer, whatever is asked for.", **SERVER)
    max_body: int | None = option(
        None,
        size(),
        "Largest request.",
        unset="what a full context can need, from 2 to 32 MiB, within a share of the memory budget",
        **SERVER,
    )
    max_connections: int = option(
        512, whole(1), "Connections at a time, as far as the process has descriptors for them.", **SERVER
    )
    max_connections_per_address: int = option(256, whole(1), "Of them, those of one address.", **SERVER)
    timeout: float = option(0.0, seconds(), "Seconds that a request may take in all; 0: any time.", **SERVER)
    body_timeout: float = option(
        30.0, seconds(), "Seconds that a request's head, and then its body, may take to arrive.", **SERVER
    )
    kv_dir: Path | None = option(
        None,
        file(what="the path of a folder"),
        "Folder to save conversations in, so that they need not be read again, also after a restart.",
        unset="nowhere",
        **SERVER,
    )
    kv_space: int = option(16 << 30, size(), "Disk space for them.", **SERVER)
    park_after: float = option(
        0.0, seconds(), "Seconds without requests after which the weights leave memory; 0: never.", **SERVER
    )
    farewell: float = option(
        10.0, seconds(), "Seconds that answers may go on when the server is told to end.", **SERVER
    )
    cors: tuple[str, ...] = option(
        (), texts(), "Origin that browsers may call from, or '*'; may be repeated.", **SERVER
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        texts(),
        "A name by which clients may call the server, besides its address and those of this machine, or '*'; may be "
        "repeated.",
        flags=("--allowed-host",),
        **SERVER,
    )
    metrics: bool = option(True, switch(), "Whether /metrics answers.", **SERVER)
    ping: float = option(
        5.0, seconds(), "Seconds between signs of life while a prompt is read.", group="Server"
    )
    trace_requests: Path | None = option(
        None,
        file(),
        "Write everything that is asked and answered to this file.",
        unset="nowhere",
        secret=True,
        **SERVER,
    )

    def __post_init__(self) -> None:
        check(self)
        keyed = bool(self.api_keys) or self.api_key_file is not None
        if self.host not in LOOPBACK and not keyed and not self.no_key:
            raise OptionError(
                f"--host {self.host} lets others than this machine in: --api-key or --api-key-file is needed, or "
                "--no-key, with which whoever can reach the server may use it, watch it and erase its sessions"
            )
        if keyed and self.no_key:
            raise OptionError("--no-key lets everybody in, and a key keeps strangers out: choose one of them")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionError("--tls-cert and --tls-key: one needs the other")
        if self.max_body is not None and self.max_body < 1024:
            raise OptionError(f"max_body is {self.max_body!r}, expected 1KiB or more")

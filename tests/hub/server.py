"""A hub on this machine: what `huggingface_hub` and Penstock ask of Hugging Face, and what may go wrong with it.

Large files are not served by the hub itself: it redirects to a second server, as Hugging Face does to its storage.
"""

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

LARGE = 1000  # bytes from which on a file is stored apart


class Asked(NamedTuple):
    """server: "hub" or "storage"; first, end: the bytes that were asked for."""

    server: str
    method: str
    path: str
    first: int
    end: int
    token: str | None


@dataclass
class Repo:
    """gated: all see what is in it, and only a token opens the files; hidden: nobody may know that it is there."""

    files: dict[str, bytes]
    gated: bool = False
    hidden: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(repr(sorted((p, digest(b)) for p, b in self.files.items())).encode()).hexdigest()


@dataclass
class Faults:
    """What the storage does wrong.

    bytes_left     then every connection breaks
    corrupt        a bit of every answer is wrong
    no_ranges      it sends whole files, whatever is asked for
    addresses_last so many requests, and are then refused
    statuses       to answer next, in place of files
    pause          seconds before each piece of an answer
    """

    bytes_left: int | None = None
    corrupt: bool = False
    no_ranges: bool = False
    addresses_last: int | None = None
    statuses: list[int] = field(default_factory=list)
    pause: float = 0.0


def digest(data: bytes) -> str:
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that goes away in the middle is what some tests are about."""


class Hub:
    """with Hub({"a/b": Repo({"m.gguf": data})}) as hub: HF_ENDPOINT=hub.url"""

    def __init__(self, repos: dict[str, Repo] | None = None):
        self.repos = repos or {}
        self.faults = Faults()
        self.log: list[Asked] = []
        self.listing: bytes | None = None  # sent in place of every listing
        self._lock = threading.Lock()
        self._addresses: dict[str, int] = {}  # how often each was used
        self._servers = [_Server(("127.0.0.1", 0), self._handler(name)) for name in ("hub", "storage")]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def fetched(self) -> list[Asked]:
        """What was asked of the storage."""
        return [asked for asked in self.log if asked.server == "storage" and asked.method == "GET"]

    def _handler(self, name: str) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                answer = hub._hub if name == "hub" else hub._storage
                try:
                    answer(self, urlsplit(self.path).path)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        return Handler

    # ── the hub ───────────────────────────────────────────────────────────────────────────────────────────

    def _hub(self, request: BaseHTTPRequestHandler, path: str) -> None:
        token = request.headers.get("Authorization")
        self._note("hub", request, path, 0, 0)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path):
            if (repo := self._open(request, found[1], token, gate=False)) is not None:
                self._send(request, 200, self.listing or self._listing(found[1], repo), {})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repo = self._open(request, found[1], token)
            if repo is not None:
                self._resolve(request, repo, unquote(found[3]))
        else:
            self._send(request, 404, b"", {})

    def _open(
        self, request: BaseHTTPRequestHandler, name: str, token: str | None, gate: bool = True
    ) -> Repo | None:
        repo = self.repos.get(name)
        if repo is None or (repo.hidden and token is None):
            self._send(request, 404 if token else 401, b"", {"X-Error-Code": "RepoNotFound"})
            return None
        if repo.gated and gate and token is None:
            self._send(request, 401, b"", {"X-Error-Code": "GatedRepo"})
            return None
        return repo

    def _listing(self, name: str, repo: Repo) -> bytes:
        siblings = []
        for path, data in repo.files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": digest(data)}
            if len(data) >= LARGE:
                entry["blobId"] = hashlib.sha1(data).hexdigest()  # of the file that points to it
                entry["lfs"] = {"sha256": digest(data), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return json.dumps({"id": name, "sha": repo.commit, "siblings": siblings, "private": False}).encode()

    def _resolve(self, request: BaseHTTPRequestHandler, repo: Repo, path: str) -> None:
        data = repo.files.get(path)
        told = {"X-Repo-Commit": repo.commit}
        if data is None:
            self._send(request, 404, b"", {**told, "X-Error-Code": "EntryNotFound"})
            return
        if len(data) < LARGE:
            self._send(request, 200, data, {**told, "ETag": f'"{digest(data)}"'})
            return
        address = f"/{digest(data)}/{len(self.log)}"
        place = f"http://localhost:{self._servers[1].server_port}{address}"
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{digest(data)}"'}
        self._send(request, 302, b"", {**told, **linked, "Location": place})

    # ── its storage ───────────────────────────────────────────────────────────────────────────────────────

    def _storage(self, request: BaseHTTPRequestHandler, path: str) -> None:
        data = next(
            data
            for repo in self.repos.values()
            for data in repo.files.values()
            if digest(data) == path.split("/")[1]
        )
        first, end, status = 0, len(data), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if wanted and not self.faults.no_ranges:
            first, end, status = int(wanted[1]), min(int(wanted[2] or len(data)) + 1, len(data)), 206
        self._note("storage", request, path, first, end)
        with self._lock:
            used = self._addresses[path] = self._addresses.get(path, 0) + 1
            refusal = self.faults.statuses.pop(0) if self.faults.statuses else None
        if self.faults.addresses_last is not None and used > self.faults.addresses_last:
            refusal = 403
        if refusal is not None:
            self._send(request, refusal, b"", {})
            return
        part = bytearray(data[first:end])
        if self.faults.corrupt:
            part[0] ^= 1
        told = {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"} if status == 206 else {}
        request.send_response(status)
        for key, value in {**told, "Content-Length": str(len(part)), "Accept-Ranges": "bytes"}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        for at in range(0, len(part), 4096):
            piece = bytes(part[at : at + 4096])
            if self.faults.pause:
                time.sleep(self.faults.pause)
            with self._lock:
                if self.faults.bytes_left is not None:
                    piece = piece[: self.faults.bytes_left]
                    self.faults.bytes_left -= len(piece)
            request.wfile.write(piece)
            if len(piece) < min(4096, len(part) - at):
                request.close_connection = True
                return

    # ── both ──────────────────────────────────────────────────────────────────────────────────────────────

    def _note(self, server: str, request: BaseHTTPRequestHandler, path: str, first: int, end: int) -> None:
        with self._lock:
            token = request.headers.get("Authorization")
            self.log.append(Asked(server, request.command, path, first, end, token))

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

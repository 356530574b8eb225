"""Bytes of one file over several connections, in order.

`huggingface_hub` begins a download that was cut from its first byte, and refuses files of more than 50 GB without its
second transport.  So the bytes come this way: a file is a row of parts, a few connections fetch one part each, and
the reader gets the bytes in order.  What has been written is then always the beginning of the file, whose length is
all that there is to know for going on later.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.errors import HubError
from penstock.hub import service
from penstock.hub.listing import Listing, RemoteFile

if TYPE_CHECKING:
    import httpx

PART: Final = 8 << 20
CONNECTIONS: Final = 8
TRIES: Final = 6  # of a part, without a byte in between
PAUSE: Final = 0.5  # seconds after a first failure, twice as long after each further one
_AGAIN: Final = (408, 429, 500, 502, 503, 504)
_EXPIRED: Final = (401, 403, 404, 410)  # of an address that the hub gave for some minutes
_RANGE: Final = re.compile(r"bytes (\d{1,20})-(\d{1,20})/(\d{1,20})")


class Source:
    """One file on the hub.  Threads may share it."""

    def __init__(self, listing: Listing, file: RemoteFile):
        self.repo, self.file = listing.repo, file
        self._client, self._headers = service.session(), service.headers()
        self._hub = service.file_url(listing, file)
        self._direct: str | None = None  # where the hub sent us; without our token

    def read(self, first: int, end: int) -> Iterator[bytes]:
        """Bytes [first, end), as far as one connection brings them."""
        direct = self._direct
        headers = {**self._headers, "Range": f"bytes={first}-{end - 1}"}
        if first == 0 and end == self.file.size:
            del headers["Range"]  # not every server knows ranges of small files
        if direct is not None:
            headers.pop("authorization", None)
        with self._client.stream(
            "GET", direct or self._hub, headers=headers, timeout=service.TIMEOUT, follow_redirects=True
        ) as response:
            elsewhere = direct is not None or response.history  # the hub itself has let us pass
            if elsewhere and response.status_code in _EXPIRED:
                self._direct = None
                raise Interrupted(f"the address of the file has expired ({response.status_code})")
            if response.status_code in _AGAIN:
                raise Interrupted(f"the server answered {response.status_code}")
            service.check(response, self.repo, self.file.path)
            self._check_range(response, first, end)
            if response.history and response.url.netloc != response.history[0].url.netloc:
                self._direct = str(response.url)
            yield from response.iter_bytes()

    def _check_range(self, response: "httpx.Response", first: int, end: int) -> None:
        if response.status_code == 200 and first == 0 and end == self.file.size:
            return
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code != 206 or found is None:
            raise HubError(
                f"{self.repo}: {self.file.path}: the server sends no parts of files (status "
                f"{response.status_code}), which a download that can go on later needs"
            )
        if (int(found[1]), int(found[3])) != (first, self.file.size):
            raise HubError(
                f"{self.repo}: {self.file.path}: asked for byte {first:,} of {self.file.size:,}, "
                f"the server has {found[0]}"
            )


class Interrupted(Exception):
    """A connection that ended early: to be tried again."""


class _Part:
    def __init__(self, first: int, end: int):
        self.first, self.end = first, end
        self.chunks: deque[bytes] = deque()
        self.done = False


def read_in_order(source: Source, first: int, end: int) -> Iterator[bytes]:
    """Bytes [first, end) of a file.  Raises HubError when a part does not come after several tries."""
    waiting = deque(_Part(at, min(at + PART, end)) for at in range(first, end, PART))
    coming: deque[_Part] = deque()  # in order, from the one that the reader is at
    changed = threading.Condition()
    failure: list[BaseException] = []
    stopped = threading.Event()

    def take() -> _Part | None:
        with changed:
            changed.wait_for(lambda: stopped.is_set() or not waiting or len(coming) <= CONNECTIONS)
            if stopped.is_set() or not waiting:
                return None
            coming.append(waiting.popleft())
            return coming[-1]

    def arrived(part: _Part, chunk: bytes) -> None:
        with changed:
            part.chunks.append(chunk)
            changed.notify_all()

    def work() -> None:
        try:
            while (part := take()) is not None:
                _fetch(source, part, arrived, stopped)
                with changed:
                    part.done = True
                    changed.notify_all()
        except BaseException as error:
            with changed:
                failure.append(error)
                changed.notify_all()

    # Daemons: Ctrl-C must not wait for a server that has fallen silent.
    for _ in range(min(CONNECTIONS, len(waiting))):
        threading.Thread(target=work, name="download", daemon=True).start()
    try:
        while True:
            with changed:
                if not coming and not waiting:
                    return
                changed.wait_for(lambda: failure or (coming and (coming[0].chunks or coming[0].done)))
                if not (coming and coming[0].chunks) and failure:  # what came before the failure still counts
                    raise failure[0]
                ready = list(coming[0].chunks)
                coming[0].chunks.clear()
                if coming[0].done:
                    coming.popleft()
                changed.notify_all()
            yield from ready
    finally:
        stopped.set()
        with changed:
            changed.notify_all()


def _fetch(
    source: Source, part: _Part, arrived: Callable[[_Part, bytes], None], stopped: threading.Event
) -> None:
    """A part, over as many connections as it takes; each goes on where the one before it ended."""
    import httpx

    at, tries = part.first, 0
    while at < part.end and not stopped.is_set():
        try:
            for chunk in source.read(at, part.end):
                if stopped.is_set():
                    return
                if len(chunk) > part.end - at:
                    raise HubError(
                        f"{source.repo}: {source.file.path}: the server sent more than it was asked for"
                    )
                arrived(part, chunk)
                at, tries = at + len(chunk), 0
            if at < part.end:
                raise Interrupted("the connection ended early")
        except (httpx.TransportError, Interrupted) as error:
            tries += 1
            if tries >= TRIES:
                why = str(error) or type(error).__name__
                raise HubError(
                    f"{source.repo}: {source.file.path}: {tries} connections failed, the last because {why}; what "
                    "has come so far is kept, and the same command goes on from there"
                ) from None
            time.sleep(PAUSE * 2 ** (tries - 1))

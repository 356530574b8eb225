"""Responses that are kept, to be read again and to go on from.

They are rows of a small database: in memory, within a share of what the plan has for sessions; or, with `--kv-dir`,
in a file that its owner alone can read, within a share of `--kv-space`.  The oldest leave first.  Every row has the
whole conversation, so each can go or stay without the others.  A response belongs to whoever asked for it: what
another key made is not found.
"""

import hashlib
import json
import logging
import sqlite3
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import SnapshotError
from penstock.machine.database import open_database
from penstock.server.api.shared import Json
from penstock.server.http.errors import ApiError

SHARE: Final = 16  # of the space for sessions, a sixteenth
LARGEST: Final = 32 << 20  # characters of a conversation that is kept
SCHEMA: Final = (
    "PRAGMA auto_vacuum = FULL",  # what leaves gives its space back,
    "PRAGMA secure_delete = ON",  # and is gone
    "CREATE TABLE IF NOT EXISTS responses (number INTEGER PRIMARY KEY, name TEXT UNIQUE, value BLOB)",
    "SELECT number, name, value FROM responses LIMIT 1",
)


class Kept(NamedTuple):
    """A response, and the items that it answers: those that its request sent, and all before them."""

    response: Json
    input: list[Json]


class ResponseStore:
    """At most `space` bytes of responses.

    make_room  called with a number of bytes before a file grows by them; SnapshotError if it cannot
    tell       called with the bytes that are kept, whenever they have changed
    """

    def __init__(
        self,
        file: Path | None,
        space: int,
        make_room: Callable[[int], None] = lambda _: None,
        tell: Callable[[int], None] = lambda _: None,
    ):
        self.space, self._make_room, self._tell = space, make_room, tell
        self._lock = threading.Lock()
        self._rows = open_database(file, *SCHEMA)
        if self._rows is None:
            logging.getLogger(__name__).warning("%s: responses cannot be kept", file)

    @property
    def bytes(self) -> int:
        """That the database takes."""
        return self._pragma("page_count") * self._pragma("page_size")

    def keep(self, owner: str, kept: Kept) -> bool:
        """Whether there is room for it.  Takes as long as the conversation is."""
        text = json.dumps(kept)
        if len(text) > LARGEST or self._rows is None:
            return False
        row = (_name(owner, kept.response["id"]), zlib.compress(text.encode(), 3))
        with self._lock:
            try:
                if not self._has_room(len(row[1])):
                    return False
                self._make_room(len(row[1]))
                self._rows.execute("INSERT INTO responses (name, value) VALUES (?, ?)", row)
                self._tell(self.bytes)
            except (SnapshotError, sqlite3.Error) as error:
                logging.getLogger(__name__).warning("a response is not kept: %s", error)
                return False
        return True

    def find(self, owner: str, id: str) -> Kept | None:
        row = self._execute("SELECT value FROM responses WHERE name = ?", _name(owner, id))
        return None if row is None else read_kept(row[0])

    def remove(self, owner: str, id: str) -> bool:
        found = self._execute("DELETE FROM responses WHERE name = ? RETURNING number", _name(owner, id))
        return found is not None

    def close(self) -> None:
        with self._lock:
            if self._rows is not None:
                self._rows.close()
                self._rows = None

    def _has_room(self, nbytes: int) -> bool:
        """Lets the oldest leave until so many bytes more fit."""
        assert self._rows is not None
        page = self._pragma("page_size")
        needed = nbytes + 4 * page  # rows and their names take pages of their own
        while self.bytes + needed > self.space:
            oldest = (
                "DELETE FROM responses WHERE number = (SELECT min(number) FROM responses) RETURNING number"
            )
            if self._rows.execute(oldest).fetchone() is None:
                return False
        return True

    def _execute(self, statement: str, name: str) -> Any:
        with self._lock:
            try:
                found = None if self._rows is None else self._rows.execute(statement, (name,)).fetchone()
                self._tell(self.bytes)
            except sqlite3.Error:
                return None
            return found

    def _pragma(self, name: str) -> int:
        return 0 if self._rows is None else int(self._rows.execute(f"PRAGMA {name}").fetchone()[0])


def read_kept(value: Any) -> Kept | None:
    """What a row says; None if it is damaged: as if it were not there."""
    if not isinstance(value, bytes):
        return None
    try:
        text = zlib.decompressobj().decompress(value, LARGEST + 1)
        response, items = json.loads(text)
    except (ValueError, TypeError, RecursionError, zlib.error):
        return None
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list) or not isinstance(items, list):
        return None
    if not all(isinstance(item, dict) and isinstance(item.get("id"), str) for item in [*output, *items]):
        return None
    return Kept(response, items)


def not_found(id: str) -> ApiError:
    """In OpenAI's words."""
    return ApiError(404, f"Response with id '{id[:100]}' not found.")


def _name(owner: str, id: str) -> str:
    """What a row goes by: whoever has another key asks for another one."""
    return hashlib.sha256(f"{owner}\0{id}".encode("utf-8", errors="surrogatepass")).hexdigest()

"""A bounded memory of small things by name, in a file if it is to outlive the process."""

import sqlite3
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST: Final = 16_384  # things
PATIENCE: Final = 0.2  # seconds that another process may keep the file busy
ROUND: Final = 256  # things added between two looks at how many there are


class Remembered:
    """The least recently used are forgotten first.  Whatever is wrong with the file, nobody is told but by a memory
    that has gone: what is kept here only saves time."""

    def __init__(self, file: Path | None = None, most: int = MOST):
        self._most = most
        self._here: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        self._added = 0
        self._file = _open(file) if file is not None else None

    def get(self, name: str) -> bytes | None:
        with self._lock:
            if name in self._here:
                self._here.move_to_end(name)
                return self._here[name]
            value = self._from_file(name)
            if value is not None:
                self._keep(name, value)
            return value

    def set(self, name: str, value: bytes) -> None:
        with self._lock:
            self._keep(name, value)
            if self._file is None:
                return
            with suppress(sqlite3.Error):
                row = (name, value, time.time())
                self._file.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?)", row)
                self._added += 1
                if self._added % ROUND == 1:
                    newest = "SELECT name FROM remembered ORDER BY used DESC LIMIT ?"
                    self._file.execute(f"DELETE FROM remembered WHERE name NOT IN ({newest})", (self._most,))

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _keep(self, name: str, value: bytes) -> None:
        self._here[name] = value
        self._here.move_to_end(name)
        while len(self._here) > self._most:
            self._here.popitem(last=False)

    def _from_file(self, name: str) -> bytes | None:
        if self._file is None:
            return None
        with suppress(sqlite3.Error):
            row = self._file.execute("SELECT value FROM remembered WHERE name = ?", (name,)).fetchone()
            if row is not None and isinstance(row[0], bytes):
                self._file.execute("UPDATE remembered SET used = ? WHERE name = ?", (time.time(), name))
                return row[0]
        return None


def _open(file: Path) -> sqlite3.Connection | None:
    """The file, made new if it is none of ours; None if there cannot be one."""
    for _ in range(2):
        with suppress(sqlite3.OperationalError, OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(file, PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS remembered (name TEXT PRIMARY KEY, value BLOB, used REAL)"
                )
                connection.execute("SELECT name, value, used FROM remembered LIMIT 1")
                return connection
            except sqlite3.DatabaseError as error:
                connection.close()
                if not isinstance(error, sqlite3.OperationalError):  # not a database
                    file.unlink(missing_ok=True)
    return None

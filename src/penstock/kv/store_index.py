"""What the store of sessions holds, in a SQLite file that several processes may use at once.

Tokens are not in it, only the hash that names an entry: finding one reads a few rows, however long the prompts were.
"""

import os
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final

from penstock.errors import SnapshotError
from penstock.machine.private import make_private_file

VERSION: Final = 1
PATIENCE_S: Final = 10.0  # for another process to finish its transaction
HALF_LIFE_S: Final = 6 * 3600.0
HIT_WORTH_S: Final = 3600.0  # a hit of this moment keeps an entry as long as being used an hour later would
PINNED_WORTH_S: Final = 30 * 24 * 3600.0  # and being pinned, as long as being used a month later

# Troubles of the place where the file is.  Any other error while it is opened says that the file itself is wrong.
_TROUBLES: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


@dataclass(frozen=True)
class Entry:
    """A saved session as the index knows it."""

    key: str  # SHA-256 of the model's fingerprint and the tokens
    model: str
    length: int  # tokens
    nbytes: int
    kind: str
    created: float  # these two in seconds since the epoch
    used: float
    hits: int = 0
    heat: float = 0.0  # hits at the time `used`, each worth half as much after every half-life

    @property
    def label(self) -> str:
        """What it was pinned for; empty for what is not pinned.

        >>> Entry("k", "m", 5, 100, "pinned-claude", 0.0, 0.0).label
        'claude'
        """
        return self.kind.removeprefix("pinned-") if self.kind.startswith("pinned-") else ""

    def hit(self, now: float) -> "Entry":
        """The same after one use more."""
        return replace(self, used=now, hits=self.hits + 1, heat=self._heat(now) + 1.0)

    def worth(self, now: float) -> float:
        """Entries worth least go first: the least recently used, with a bonus for those that were used often, and a
        large one for those that are pinned."""
        return min(self.used, now) + HIT_WORTH_S * self._heat(now) + (PINNED_WORTH_S if self.label else 0.0)

    def _heat(self, now: float) -> float:
        return float(self.heat * 0.5 ** (max(0.0, now - self.used) / HALF_LIFE_S))


_COLUMNS: Final = [field.name for field in fields(Entry)]
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM entries"
_TABLE: Final = """
    CREATE TABLE entries (
        key TEXT PRIMARY KEY NOT NULL, model TEXT NOT NULL, length INTEGER NOT NULL, nbytes INTEGER NOT NULL,
        kind TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL, hits INTEGER NOT NULL, heat REAL NOT NULL
    ) STRICT, WITHOUT ROWID
"""


class _Damaged(Exception):
    """The file is no index, or not one that can be trusted."""


class Index:
    """An open index.  May be used from several threads.  Made by `open_index`."""

    def __init__(self, path: Path):
        self._lock = threading.RLock()
        with suppress(OSError):  # what cannot be written cannot be opened either, and that is told below
            make_private_file(path)
        self._db = sqlite3.connect(path, PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _TROUBLES:
                raise SnapshotError(f"{path}: cannot be opened: {error}") from error
            raise _Damaged(str(error)) from error
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # a loss of power may undo, not damage
        with self.transaction():
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._db.execute(_TABLE)
                self._db.execute("CREATE INDEX by_length ON entries (model, length)")
                self._db.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise _Damaged(f"version {version}, expected {VERSION}")
        (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise _Damaged(verdict)
        self.entries()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """While inside, no other thread or process changes the index.  All or nothing of it happens."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def get(self, key: str) -> Entry | None:
        with self._lock:
            row = self._db.execute(f"{_SELECT} WHERE key = ?", (key,)).fetchone()
        return None if row is None else Entry(*row)

    def entries(self) -> list[Entry]:
        with self._lock:
            return [Entry(*row) for row in self._db.execute(_SELECT)]

    def lengths(self, model: str, least: int, most: int) -> list[int]:
        """The different lengths of a model's entries within these bounds, ascending."""
        query = (
            "SELECT DISTINCT length FROM entries WHERE model = ? AND length BETWEEN ? AND ? ORDER BY length"
        )
        with self._lock:
            return [length for (length,) in self._db.execute(query, (model, least, most))]

    def nbytes(self) -> int:
        """Bytes of all entries."""
        with self._lock:
            (total,) = self._db.execute("SELECT coalesce(sum(nbytes), 0) FROM entries").fetchone()
        return int(total)

    def set(self, entry: Entry) -> None:
        """Adds an entry, or replaces the one with its key."""
        with self._lock:
            marks = ", ".join("?" * len(_COLUMNS))
            self._db.execute(f"INSERT OR REPLACE INTO entries VALUES ({marks})", astuple(entry))

    def remove(self, key: str) -> None:
        with self._lock:
            self._db.execute("DELETE FROM entries WHERE key = ?", (key,))

    def close(self) -> None:
        with self._lock:
            self._db.close()


def open_index(path: Path) -> Index:
    """Opens or creates an index.  A damaged one is moved aside and an empty one takes its place.

    The caller sees to it that no other process opens the same file meanwhile.
    """
    try:
        return Index(path)
    except _Damaged as damage:
        aside = path.with_name(f"{path.name}.damaged")
        for suffix in ("-wal", "-shm", ""):
            if os.path.exists(f"{path}{suffix}"):
                os.replace(f"{path}{suffix}", f"{aside}{suffix}")
        warnings.warn(
            f"{path}: damaged ({damage}); moved to {aside.name} and made again from the saved sessions",
            stacklevel=4,
        )
        return Index(path)

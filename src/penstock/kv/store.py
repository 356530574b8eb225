"""Saved sessions in a folder, found again by the tokens they begin with, also after a restart.

    KEY.KIND         a saved session (`kv.snapshot`); KEY is the SHA-256 of the model's fingerprint and the tokens
    index.sqlite     what is there, how long, how often used (`kv.store_index`)
    *.PID.part       a session that process PID is writing

Payloads are the truth and the index is a list of them: it can be made again from their headers.  A payload gets its
name, and loses it, inside a transaction of the index, so processes that share the folder agree about what is there.
Nothing that goes wrong here hurts whoever asks: what cannot be read is as if it were not there, and what cannot be
written is left out, with one warning.
"""

import fcntl
import hashlib
import itertools
import os
import re
import sqlite3
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from penstock.backend.state import KV_DTYPES, StateLayout, StateMemory
from penstock.errors import ModelFormatError, OptionError, SnapshotError, TokenError
from penstock.kv.snapshot import FORMAT, Snapshot, load_snapshot, save_snapshot
from penstock.kv.state import live_shapes
from penstock.kv.store_index import Entry, open_index
from penstock.machine.private import private_file, private_folder
from penstock.weights.safetensors_reader import read_safetensors_with_metadata

KINDS: Final = ("system", "prompt", "frontier", "end")  # where in a conversation a session was saved, or
PINNED: Final = re.compile(r"pinned-[a-z0-9-]{1,64}")  # whose beginning it is, which is to stay
ABANDONED_S: Final = 3600.0  # a part untouched for so long has no writer, whoever has its process number now

_PAYLOAD: Final = re.compile(rf"([0-9a-f]{{64}})\.({'|'.join(KINDS)}|{PINNED.pattern})")
_OWN: Final = re.compile(rf"{_PAYLOAD.pattern}|.*\.part|lock|index\.sqlite.*")
_PART: Final = re.compile(r"[0-9a-f]{64}\.\d+\.(\d+)\.part(\.\d+\.part)?")
_TROUBLES: Final = (OSError, SnapshotError, sqlite3.Error)  # of the disk or the index: never the caller's
_numbers: Final = itertools.count()  # tells apart what threads of this process write at the same time


class KvStore:
    """Sessions of at most `space` bytes in all; those worth least go first (`Entry.worth`).  What others keep in the
    folder counts as well, and is left alone.

    The folder may hold sessions of several models; `fingerprint` says which of them this store finds.

    >>> store.put(session.tokens, snapshot, "prompt")                            # doctest: +SKIP
    >>> while (entry := store.find(prompt, at_least=16)) is not None:            # doctest: +SKIP
    ...     if (snapshot := store.load(entry, pool)) is not None:
    ...         break
    """

    def __init__(self, folder: Path, space: int, fingerprint: str):
        if space <= 0:
            raise OptionError(f"{folder}: the space for saved sessions is {space:,} bytes, expected more")
        self.folder, self.space, self.fingerprint = folder, space, fingerprint
        self._passed_over: set[str] = set()  # keys of entries that are there but of no use here
        self._warned = False
        try:
            private_folder(folder)
            with _alone(folder / "lock"):
                self._index = open_index(folder / "index.sqlite")
                try:
                    self._tidy()
                except BaseException:
                    self._index.close()
                    raise
        except OSError as error:
            raise OptionError(f"{folder}: cannot keep saved sessions: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise SnapshotError(f"{folder}: cannot keep saved sessions: {error}") from error

    def close(self) -> None:
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.entries())

    @property
    def bytes(self) -> int:
        """Bytes of the saved sessions of all models."""
        return self._index.nbytes()

    @property
    def others(self) -> int:
        """Bytes of what others keep in the folder, such as sessions saved by name."""
        return sum(_size(path) for path in self.folder.rglob("*") if not _OWN.fullmatch(path.name))

    def make_room(self, nbytes: int) -> None:
        """For a file that somebody else is about to write into the folder; SnapshotError if there is none."""
        with self._index.transaction():
            self._make_room(nbytes)

    def entries(self) -> list[Entry]:
        """What the folder holds, of all models."""
        return self._index.entries()

    # ── finding and loading ───────────────────────────────────────────────────────────────────────────────

    def find(self, tokens: Sequence[int], at_least: int = 1) -> Entry | None:
        """The longest entry, of `at_least` so many tokens, that these tokens begin with."""
        try:
            lengths = self._index.lengths(self.fingerprint, max(1, at_least), len(tokens))
            for key in reversed(_keys(self.fingerprint, tokens, lengths)):
                if key not in self._passed_over and (entry := self._index.get(key)) is not None:
                    return entry
        except _TROUBLES as error:
            self._warn("looked up", error)
        return None

    def holds(self, tokens: Sequence[int]) -> bool:
        """Whether exactly these tokens are saved."""
        try:
            return self._holds(_key(self.fingerprint, tokens))
        except _TROUBLES as error:
            self._warn("looked up", error)
            return False

    def load(self, entry: Entry, pool: StateMemory) -> Snapshot | None:
        """The session of an entry, or None, and then `find` does not return the entry again: its payload has gone, is
        damaged and has been deleted, or is of another layout and stays for others."""
        try:
            if self._suits(entry, pool.layout):
                snapshot = self._loaded(entry, pool)
                self._count_hit(entry)
                return snapshot
            self._passed_over.add(entry.key)
        except (FileNotFoundError, ModelFormatError, SnapshotError) as error:
            self._drop(entry, error)
        except OSError as error:
            self._warn("loaded", error)
            self._passed_over.add(entry.key)
        return None

    def _suits(self, entry: Entry, layout: StateLayout) -> bool:
        """Whether the state was of such a layout.  The model is the same: its fingerprint is part of the key."""
        path = self._path(entry)
        path.open("rb").close()  # one that cannot be opened may be sound
        tensors, metadata = read_safetensors_with_metadata(path)
        kv_dtype = metadata.get("kv_dtype", "").lower()
        other_dtype = kv_dtype in KV_DTYPES and kv_dtype != layout.kv_dtype
        needed = live_shapes(layout, entry.length, entry.length)
        less = any(
            rows and name not in tensors for name, (rows, _) in needed.items()
        )  # saved without a draft block
        return entry.length <= layout.context and not other_dtype and not less

    def _loaded(self, entry: Entry, pool: StateMemory) -> Snapshot:
        snapshot = load_snapshot(self._path(entry), pool, self.fingerprint)
        if _key(self.fingerprint, snapshot.tokens) != entry.key:
            raise SnapshotError(f"{self._path(entry)}: holds other tokens than its name says")
        return snapshot

    def _count_hit(self, entry: Entry) -> None:
        with suppress(sqlite3.Error), self._index.transaction():
            if (current := self._index.get(entry.key)) is not None:
                self._index.set(current.hit(time.time()))

    def _drop(self, entry: Entry, reason: Exception) -> None:
        """Forgets an entry that could not be read, unless another process has meanwhile deleted it or written it
        again: then that was the reason."""
        try:
            with self._index.transaction():
                current = self._index.get(entry.key)
                if current is None or current.created != entry.created:
                    return
                if self._path(entry).exists():
                    self._warn("loaded", reason)
                self._remove(current)
        except _TROUBLES as error:
            self._warn("removed", error)
            self._passed_over.add(entry.key)

    # ── saving ────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, tokens: Sequence[int], snapshot: Snapshot, kind: str) -> bool:
        """Saves a session that has read `tokens`.  True if the store has it, now or from before."""
        if kind not in KINDS and not PINNED.fullmatch(kind):
            expected = f"one of {', '.join(KINDS)}, or pinned-LABEL"
            raise OptionError(f"the kind of a saved session is {kind!r}, expected {expected}")
        if list(tokens) != snapshot.tokens or len(tokens) != snapshot.state.position:
            raise OptionError(
                f"{len(tokens):,} tokens for a state at position {snapshot.state.position:,} "
                f"that comes with {len(snapshot.tokens):,}: expected the same tokens"
            )
        if not tokens:
            return False
        try:
            self._save(_key(self.fingerprint, tokens), snapshot, kind)
        except _TROUBLES as error:
            self._warn("saved", error)
            return False
        return True

    def _save(self, key: str, snapshot: Snapshot, kind: str) -> None:
        if self._holds(key):
            if PINNED.fullmatch(kind):
                self._pin(key, kind)
            return
        part = self.folder / f"{key}.{next(_numbers)}.{os.getpid()}.part"
        try:
            with self._index.transaction():
                self._make_room(snapshot.nbytes)  # before writing: the disk may have no room for more
            save_snapshot(part, snapshot, self.fingerprint)
            self._enter(part, key, len(snapshot.tokens), kind)
        finally:
            part.unlink(missing_ok=True)

    def _pin(self, key: str, kind: str) -> None:
        """What is saved already gets a name that says that it is to stay."""
        with self._index.transaction():
            old = self._index.get(key)
            if old is None or old.kind == kind:
                return
            new = replace(
                old, kind=kind, created=time.time()
            )  # who looks for the old name finds another entry
            os.replace(self._path(old), self._path(new))
            self._index.set(new)

    def _holds(self, key: str) -> bool:
        return key not in self._passed_over and self._index.get(key) is not None

    def _enter(self, part: Path, key: str, length: int, kind: str) -> None:
        now = time.time()
        entry = Entry(key, self.fingerprint, length, part.stat().st_size, kind, created=now, used=now)
        with self._index.transaction():
            if self._holds(key):  # another process was faster
                return
            if (unusable := self._index.get(key)) is not None:
                self._remove(unusable)
            self._make_room(entry.nbytes)
            os.replace(part, self._path(entry))
            self._index.set(entry)
        self._passed_over.discard(key)

    def _make_room(self, nbytes: int) -> None:
        """Inside a transaction: removes what is worth least until so many bytes more fit."""
        space = self.space - self.others
        if nbytes > max(space, 0):
            raise SnapshotError(
                f"{nbytes:,} bytes do not fit the space of {self.space:,} besides {self.others:,} of other files"
            )
        excess = self._index.nbytes() + nbytes - space
        if excess <= 0:
            return
        now = time.time()
        for entry in sorted(self._index.entries(), key=lambda entry: entry.worth(now)):
            self._remove(entry)
            excess -= entry.nbytes
            if excess <= 0:
                return

    def _remove(self, entry: Entry) -> None:
        """Inside a transaction: forgets an entry and deletes its payload."""
        self._index.remove(entry.key)
        self._path(entry).unlink(missing_ok=True)

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.key}.{entry.kind}"

    # ── putting the folder in order ───────────────────────────────────────────────────────────────────────

    def _tidy(self) -> None:
        """Makes index and payloads agree, and removes what interrupted writers left."""
        with self._index.transaction():
            files = [path for path in self.folder.iterdir() if _PAYLOAD.fullmatch(path.name)]
            known = {self._path(entry): entry.key for entry in self._index.entries()}
            for path in known.keys() - set(files):
                self._index.remove(known[path])
            for path in files:
                if path not in known:
                    self._adopt(path)
            for path in self.folder.glob("*.part"):
                if _is_left_over(path):
                    path.unlink(missing_ok=True)
            self._make_room(0)

    def _adopt(self, path: Path) -> None:
        """A payload that the index does not know: the index is new, or the writer died before it could say so."""
        try:
            entry = _described(path)
        except (ModelFormatError, SnapshotError):
            path.unlink(missing_ok=True)
            return
        if self._index.get(entry.key) is None:
            self._index.set(entry)
        else:
            path.unlink(missing_ok=True)

    def _warn(self, done: str, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            message = (
                f"{self.folder}: a session could not be {done}: {error}.  There will be no other warning."
            )
            warnings.warn(message, stacklevel=3)


def _key(fingerprint: str, tokens: Sequence[int]) -> str:
    return _keys(fingerprint, tokens, [len(tokens)])[0]


def _keys(fingerprint: str, tokens: Sequence[int], lengths: Sequence[int]) -> list[str]:
    """Keys of the first so many tokens, for ascending lengths, in one pass over the tokens."""
    try:
        data = np.asarray(tokens, "<i4").tobytes()
    except OverflowError as error:
        raise TokenError(f"token ids must fit 32 bits: {error}") from None
    digest = hashlib.sha256(fingerprint.encode() + b"\0")
    keys = []
    for start, stop in itertools.pairwise([0, *lengths]):
        digest.update(data[4 * start : 4 * stop])
        keys.append(digest.copy().hexdigest())
    return keys


def _described(path: Path) -> Entry:
    """A payload's entry, from its header and tokens.  The rest is checked when it is loaded."""
    tensors, metadata = read_safetensors_with_metadata(path)
    key, _, kind = path.name.partition(".")
    model, tokens = metadata.get("model", ""), tensors.get("tokens")
    if metadata.get("format") != FORMAT or tokens is None or tokens.kind.name != "I32":
        raise SnapshotError(f"{path}: not a saved session")
    ids = tokens.file.view(tokens.offset, tokens.nbytes).view("<i4")  # [n]
    if _key(model, ids.tolist()) != key:
        raise SnapshotError(f"{path}: holds other tokens than its name says")
    file = path.stat()
    return Entry(key, model, len(ids), file.st_size, kind, created=file.st_mtime, used=file.st_mtime)


def _size(path: Path) -> int:
    try:
        found = path.lstat()
    except OSError:  # gone meanwhile
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _is_left_over(path: Path) -> bool:
    """Whether this is a part that nobody writes any more."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return False
    try:
        os.kill(int(match[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # somebody else's process
    try:
        return time.time() - path.stat().st_mtime > ABANDONED_S
    except FileNotFoundError:
        return False


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While inside, no other process is.  The kernel lets go of the lock if this one dies."""
    with private_file(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

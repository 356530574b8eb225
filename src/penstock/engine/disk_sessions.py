"""Sessions on disk, behind the prefix cache: loaded when a prompt begins like one, saved in the background."""

import logging
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.engine.engine import Engine
from penstock.engine.session import Session
from penstock.errors import ClusterError
from penstock.kv.store import KvStore
from penstock.kv.store_index import Entry

MAX_PENDING: Final = 4  # sessions whose saving has not begun; each holds its state in memory


class DiskSessions:
    """A folder of saved sessions of an engine, and the thread that writes to it."""

    def __init__(self, engine: Engine, folder: Path, space: int):
        self.engine = engine
        self.store = KvStore(folder, space, engine.fingerprint)
        self._lock = threading.Lock()
        self.pending = 0  # bytes of the sessions that wait
        self._jobs: queue.Queue[tuple[Session, str] | None] = queue.Queue(MAX_PENDING)
        self._thread = threading.Thread(target=self._write, name="penstock-kv-writer", daemon=True)
        self._thread.start()

    def fetch(self, tokens: Sequence[int], at_least: int) -> tuple[Session, str] | None:
        """The session with the longest prefix of these tokens, if any is that long, and its kind."""
        while (entry := self.store.find(tokens, at_least)) is not None:
            snapshot = self.store.load(entry, self.engine.states)
            if snapshot is not None:
                return self.engine.restored(snapshot), entry.kind
        return None

    def save(self, session: Session, kind: str) -> None:
        """Saves a session that nobody changes meanwhile, unless what it remembered is lost."""
        try:
            if not session.lost:
                self.store.put(session.tokens, session.snapshot(), kind)
        except ClusterError as error:
            logging.getLogger(__name__).warning("a session could not be saved: %s", error)

    def save_later(self, session: Session, kind: str) -> bool:
        """Saves a session that nobody changes any more, in the background.  False: the disk is behind, ask later."""
        with self._lock:
            try:
                self._jobs.put_nowait((session, kind))
            except queue.Full:
                return False
            self.pending += self.engine.state_bytes(session.position)
            return True

    def pinned(self) -> list[Entry]:
        """Entries of this engine's model that are to stay."""
        return [
            entry for entry in self.store.entries() if entry.label and entry.model == self.engine.fingerprint
        ]

    def flush(self) -> None:
        """Waits until everything that waits is saved."""
        self._jobs.join()

    def close(self) -> None:
        """Saves what waits, then ends."""
        self._jobs.put(None)
        self._thread.join()
        self.store.close()

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            session, kind = job
            try:
                self.save(session, kind)
            except Exception:  # the next one may go well
                logging.getLogger(__name__).exception("a session could not be saved")
            finally:
                with self._lock:
                    self.pending -= self.engine.state_bytes(session.position)
                self._jobs.task_done()
                del job, session  # its state need not wait for the next one
        self._jobs.task_done()

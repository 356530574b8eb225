"""A `penstock serve` of our own: started on a free port, watched, ended in order or killed."""

import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from benchmarks.cgroup import MemoryGroup
from benchmarks.children import ROOT, ChildError

PATIENCE_S: Final = 300.0  # for the weights to be there, or for an orderly end


class Served:
    """A server that answers.  `start_s`: from the start of the process until it does.

    >>> with Served("--parallel", "64") as server:                               # doctest: +SKIP
    ...     httpx.post(f"{server.url}/v1/completions", json={"prompt": "Hello"})
    """

    def __init__(self, *arguments: str, group: MemoryGroup | None = None):
        """group: the memory group that it runs in."""
        command = [sys.executable, "-m", "penstock", "serve", "--port", "0", *arguments]
        if group is not None:
            command = group.enter(command)
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the server
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        try:
            self.url = self._address()
            self._wait()
        except BaseException:
            self.kill()
            raise
        self.start_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self._process.pid

    def props(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/props", timeout=60).json()
        return found

    def scheduler(self) -> dict[str, Any]:
        """What the scheduler has counted."""
        found: dict[str, Any] = self.props()["penstock"]["scheduler"]
        return found

    def rss(self) -> int:
        """Bytes in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return 1024 * int(found[1]) if found else 0

    def end(self) -> None:
        """With SIGTERM; ChildError if it does not end well."""
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ChildError(f"the server has not ended {PATIENCE_S:.0f} s after SIGTERM") from None
        finally:
            words = self._last_words()
            self.kill()
        if status != 0:
            raise ChildError(f"the server ended with status {status}:\n{words}")

    def kill(self) -> None:
        """With SIGKILL."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

    def _address(self) -> str:
        assert self._process.stdout is not None
        guard = threading.Timer(PATIENCE_S, self._process.kill)
        guard.start()
        try:
            line = self._process.stdout.readline()
        finally:
            guard.cancel()
        if not line.startswith("penstock: listening on "):
            raise ChildError(f"the server did not start:\n{line}{self._last_words()}")
        return line.split()[-1]

    def _wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise ChildError(f"the server is not ready:\n{self._last_words()}")

    def _last_words(self) -> str:
        self._process.poll()
        self._log.flush()
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-12:])

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._log.closed:
            self.kill()


class Memory(NamedTuple):
    """Bytes in memory at a time (of `time.perf_counter`)."""

    at: float
    rss: int


@contextmanager
def watched(server: Served, every: float = 1.0) -> Iterator[list[Memory]]:
    """The server's memory, looked at so often; the list grows meanwhile."""
    seen: list[Memory] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every):
            try:
                seen.append(Memory(time.perf_counter(), server.rss()))
            except OSError:  # it has ended
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()

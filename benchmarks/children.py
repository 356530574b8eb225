"""Child processes of a benchmark: engines that wait for orders, and one that only keeps a core busy."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cgroup import MemoryGroup

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S: Final = 3600.0  # for one answer; who needs longer is taken for stuck


class ChildError(RuntimeError):
    """An engine could not start or died; the message ends with its last words."""


class EngineChild:
    """One engine in its own process, in a memory group if one is given.

    `start_s`: from the start of the process to its first token.

    >>> with EngineChild(sys.executable, engine="penstock", model=path, …) as child:    # doctest: +SKIP
    ...     child.ask(do="prefill", ids=[0, 17, 4])["seconds"]
    """

    def __init__(self, python: str | Path, *, group: MemoryGroup | None = None, **request: Any):
        self.request = request
        command = [str(python), "-m", "benchmarks.engine_worker", json.dumps(request, default=str)]
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the child
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            group.enter(command) if group else command,
            cwd=ROOT,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.first = self._answer()
        except BaseException:
            self.close()
            raise
        self.start_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer will say why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        begin = time.perf_counter()
        guard = threading.Timer(PATIENCE_S, self._process.kill)
        guard.start()
        try:
            line = self._process.stdout.readline()
        finally:
            guard.cancel()
        if not line.startswith("{"):
            status = self._process.wait()
            late = f" (no answer in {PATIENCE_S:.0f} s)" if time.perf_counter() - begin >= PATIENCE_S else ""
            self._log.seek(0)
            tail = "\n".join(self._log.read().splitlines()[-12:])
            raise ChildError(f"{self.request['engine']} ended with status {status}{late}:\n{tail}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> "EngineChild":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def busy_core() -> Iterator[None]:
    """While inside, another process keeps one core busy."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        yield
    finally:
        burner.kill()
        burner.wait()


def run(command: Sequence[str], **environment: str) -> None:
    """A command whose output the person sees; ChildError if it fails."""
    done = subprocess.run(command, env=os.environ | environment, check=False)
    if done.returncode != 0:
        raise ChildError(f"{' '.join(command)} ended with status {done.returncode}")

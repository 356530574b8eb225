"""Markdown rendered in a process of its own, which is started when it is first needed."""

import json
import subprocess
import sys
import threading
from typing import Any, Final

from penstock.server.http.errors import ApiError
from penstock.server.http.request_context import current_request
from penstock.server.http.work import Lane, Turn

IDLE: Final = 300.0  # seconds without a text after which the process ends
PATIENCE: Final = 30.0  # seconds after which it is taken for dead; it gives up by itself long before


class Renderer:
    """One text at a time; who waits is served by turns, client after client."""

    def __init__(self) -> None:
        self._lane = Lane("page")
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._leave: threading.Timer | None = None

    async def render(self, text: str) -> list[Any]:
        """Blocks, as `markdown.blocks` makes them."""
        found = await self._lane.run(Turn.of(current_request()), lambda: self._ask(text))
        if found is None:
            raise ApiError(400, "this text takes too much time or memory to render", code="too_complex")
        return found

    def close(self) -> None:
        """Whoever still waits for a text does not get it."""
        if self._process is not None:
            self._process.kill()
        self._retire()

    def _ask(self, text: str) -> list[Any] | None:
        with self._turn:
            if self._leave is not None:
                self._leave.cancel()
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            guard = threading.Timer(PATIENCE, process.kill)
            guard.start()
            try:
                process.stdin.write(json.dumps(text).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
                found: list[Any] | None = json.loads(line) if line else None
            except OSError:
                found = None
            finally:
                guard.cancel()
            if found is None:  # it may have died, or be full of what it could not finish
                self._end()
                return None
            self._leave = threading.Timer(IDLE, self._retire)
            self._leave.daemon = True
            self._leave.start()
            return found

    def _retire(self) -> None:
        with self._turn:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "penstock.server.page.worker"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._process

    def _end(self) -> None:
        if self._leave is not None:
            self._leave.cancel()
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

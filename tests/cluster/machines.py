"""Clusters for tests: a head, and workers as threads of the same process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.cluster.expert_worker import ExpertWorker
from penstock.cluster.worker import StageWorker
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.weights.opening import open_checkpoint


class Hired:
    """A worker on a thread; `failure` is what ended it, if it did not end by itself."""

    def __init__(self, path: Path, port: int, share: float | None = None, **options: Any):
        self.said: list[str] = []
        self.failure: Exception | None = None
        chosen = EngineOptions(**{"threads": 1, "memory": None, "learn": "off", **options})
        where = (open_checkpoint(path), chosen, "127.0.0.1", port, self.said.append)
        self._worker = StageWorker(*where) if share is None else ExpertWorker(*where, share=share)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._worker.run(once=True)
        except Exception as error:
            self.failure = error

    def wait(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()


def open_head(path: Path, stages: int, **options: Any) -> tuple[Engine, int]:
    """An engine that waits for workers, and the port where it does."""
    chosen = {"threads": 1, "memory": None, "learn": "off", "boundary": "f32", **options}
    engine = Engine(path, cluster="127.0.0.1:0", stages=stages, load=False, **chosen)
    return engine, 0 if engine.machines is None else engine.machines.head.address[1]


@contextmanager
def cluster(path: Path, stages: int, **options: Any) -> Iterator[Engine]:
    """An engine whose layers are spread over so many stages."""
    engine, port = open_head(path, stages, **options)
    workers = [Hired(path, port) for _ in range(stages - 1)]
    try:
        engine.load()
        yield engine
    finally:
        engine.close()
        for worker in workers:
            worker.wait()

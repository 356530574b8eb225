"""A real server on a port of its own, with a model that streams its experts."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.service import Service


def small_engine() -> Engine:
    """So little memory that experts come and go."""
    return Engine(pocket_path(), threads=1, context=2048, memory=380 << 20, streaming="direct", policy="lru")


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """A real server, on a port of its own; its address."""
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        service.scheduler.stop()  # which ends the streams that others still listen to
        server.should_exit = True
        thread.join()

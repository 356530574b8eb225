"""The way of one decode step, and of one chat request over HTTP: which files and functions it really enters.

    python -m benchmarks.walk                  both, file by file
    python -m benchmarks.walk --functions      every function, in the order in which it was first entered

Found by tracing calls, after a first step or request has made what is made once.
"""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from penstock.pocket import pocket_path

ROOT = Path(penstock.__file__).parent


@dataclass
class Walk:
    """Functions of the package, by file, in the order in which they were first entered."""

    entered: dict[str, list[str]] = field(default_factory=dict)

    def note(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(str(ROOT)):
            return
        functions = self.entered.setdefault(str(Path(name).relative_to(ROOT)), [])
        if frame.f_code.co_qualname not in functions:
            functions.append(frame.f_code.co_qualname)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Calls of all threads are noted inside.  Threads that run already look for it at their next call."""
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        set_all = getattr(threading, "setprofile_all_threads", None)  # since Python 3.12
        if set_all is not None:
            set_all(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            if set_all is not None:
                set_all(None)

    def show(self, title: str, functions: bool) -> None:
        total = sum(map(len, self.entered.values()))
        print(f"{title}: {len(self.entered)} files, {total} functions")
        for file, names in self.entered.items():
            print(f"  {file:44} {len(names):3}")
            if functions:
                for name in names:
                    print(f"      {name}")
        print()


def decode_step() -> Walk:
    """One token of `engine.generate`, with the pocket model."""
    walk = Walk()
    with penstock.Engine(pocket_path(), draft="off") as engine:
        steps = engine.generate(
            engine.tokenizer.encode("Once upon a time"),
            200,
            penstock.Sampling(temperature=0, ignore_eos=True),
        )
        for _ in range(150):  # by now every expert has been used
            next(steps)
        with walk.taken():
            next(steps)
    return walk


def chat_request() -> Walk:
    """One streamed request to /v1/chat/completions, from the application's door to its last event."""
    from fastapi.testclient import TestClient

    from penstock.server.http.app import create_app
    from penstock.server.http.settings import Settings
    from penstock.server.service import Service

    walk = Walk()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 17 + 25?"}], "stream": True}
    with (
        penstock.Engine(pocket_path(), draft="off") as engine,
        walk.taken(),  # before the application, whose threads are watched from their beginning
        TestClient(create_app(Service(engine, Settings()))) as client,
    ):
        for _ in range(2):
            walk.entered.clear()
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                response.read()
                response.raise_for_status()
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__)
    parser.add_argument("--functions", action="store_true")
    options = parser.parse_args()
    decode_step().show("one decode step", options.functions)
    chat_request().show("one chat request", options.functions)


if __name__ == "__main__":
    main()

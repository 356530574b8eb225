"""Where the time of a step goes, measured from the outside: the model knows nothing of it and pays nothing."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.bench.traffic import Part
from penstock.model.base import Architecture


class Stopwatch:
    """Adds up the time of wrapped functions.  A part does not count what a part inside it takes.

    >>> watch = Stopwatch()
    >>> inner = watch.wrap(Part.ROUTER, lambda: time.sleep(0.01))
    >>> outer = watch.wrap(Part.EXPERTS, lambda: inner())
    >>> outer()
    >>> watch.seconds[Part.ROUTER] > watch.seconds[Part.EXPERTS]
    True
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[Part, float] = defaultdict(float)
        self._inside = [0.0]  # for each part now running: what the parts inside it have taken so far

    def wrap(self, part: Part, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.perf_counter() - begin
                self.seconds[part] += taken - self._inside.pop()
                self._inside[-1] += taken

        return timed


# Methods of a layer, as paths from it.  One that is gone counts with the part around it.
LAYER_PARTS = (
    ("attention_hyper.enter", Part.MIXING),
    ("experts_hyper.between", Part.MIXING),
    ("experts_hyper.leave", Part.MIXING),
    ("attention.run", Part.ATTENTION),
    ("router.run", Part.ROUTER),
    ("mixture", Part.EXPERTS),  # less the router, which runs inside it
)
MODEL_PARTS = (("embedding.run", Part.EMBEDDING), ("logits", Part.HEAD), ("draft_block.follow", Part.DRAFT))


@contextmanager
def watching(model: Architecture) -> Iterator[Stopwatch]:
    """While inside, the model's parts are timed.  Afterwards it is as it was."""
    watch = Stopwatch()
    wrapped: set[tuple[int, str]] = set()
    targets: list[tuple[object, str, Part]] = [(model, *target) for target in MODEL_PARTS]
    targets += [(layer, *target) for layer in getattr(model, "layers", ()) for target in LAYER_PARTS]
    undo = []
    try:
        for root, path, part in targets:
            owner, name = _resolve(root, path)
            if owner is None or (id(owner), name) in wrapped:
                continue
            wrapped.add((id(owner), name))
            setattr(owner, name, watch.wrap(part, getattr(owner, name)))  # hides the class's method
            undo.append((owner, name))
        yield watch
    finally:
        for owner, name in undo:
            delattr(owner, name)


def _resolve(root: Any, path: str) -> tuple[Any, str]:
    """The object that has the method, and the method's name; (None, name) if it is not there."""
    *steps, name = path.split(".")
    for step in steps:
        root = getattr(root, step, None)
    return (root if hasattr(root, name) else None), name

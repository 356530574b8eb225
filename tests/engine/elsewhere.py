"""An engine whose logits pretend to lie on a device, where tokens are chosen: the CPU computes, and nobody looks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Choice, Choosing, Chosen, Logits
from penstock.backend.device_sampling import DeviceSampling
from penstock.backend.state import Step
from penstock.engine.engine import Engine

Array = NDArray[Any]


class Elsewhere:
    """Logits that are good until the next step, but for a copy."""

    def __init__(self, array: Array):
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, where: int | slice) -> "Elsewhere":
        return Elsewhere(self.array[where])

    def __iter__(self) -> Iterator["Elsewhere"]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype)

    def copy(self) -> "Elsewhere":
        return Elsewhere(self.array.copy())


class Late(Choosing):
    """Made when somebody asks for the token, here or there."""

    def __init__(self, make: Callable[[], Chosen]):
        self._make, self._made = make, list[Chosen]()

    def result(self) -> Chosen:
        if not self._made:
            self._made.append(self._make())
        return self._made[0]


class LateSampling(DeviceSampling):
    def start(self, logits: Logits, choice: Choice) -> Choosing | None:
        where: object = logits
        return Late(lambda: self._chosen(where.array, choice)) if isinstance(where, Elsewhere) else None

    def tokens(self, choices: Sequence[Choosing]) -> Array:
        return np.array([choice.result().token for choice in choices], np.int64)

    def _chosen(self, logits: Array, choice: Choice) -> Chosen:
        highest = self._host.top(logits)[1]
        norm, edited = self._host.log_sum(logits, highest), logits.copy()
        if choice.edits is not None:
            ids, repeated, subtract, add = choice.edits
            values = edited[ids]
            penalty = np.float32(choice.repetition_penalty)
            values = np.where(repeated, np.where(values > 0, values / penalty, values * penalty), values)
            edited[ids] = (values.astype(np.float64) - subtract).astype(np.float32) + add
        token, best = self._host.top(edited)
        if choice.temperature > 0:
            filters = choice.top_k, choice.top_p, choice.min_p, choice.chance
            token = self._host.draw(edited, best, choice.temperature, *filters)
        return Chosen(token, float(logits[token]) - norm, highest, best)


class Steps:
    """Counts those that ran, and those of them whose tokens nobody here knew."""

    def __init__(self, engine: Engine):
        self.ran = self.ahead = 0
        self.fails: Exception | None = None
        self._begin = engine.runner.begin
        engine.backend.sampling = LateSampling(engine.backend.sampling)
        engine.runner.begin = self.begin  # type: ignore[method-assign]

    def begin(self, step: Step, progress: Callable[[float], None] | None = None) -> Callable[[], Logits]:
        self.ran += 1
        if step.source is not None:
            self.ahead += 1
            if self.fails is not None:
                raise self.fails
            step = replace(step, tokens=step.source, source=None)
        logits = cast(Logits, Elsewhere(self._begin(step, progress)()))
        return lambda: logits

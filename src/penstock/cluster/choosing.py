"""Choosing tokens on the last stage, where logits are: few bytes cross, and it chooses what the head would have."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Choice, Choosing, Chosen, Edits, Logits, Sampling
from penstock.cluster.message import Message, take


class Best(NamedTuple):
    """What is known of a row of logits without looking at it."""

    token: int  # with the highest logit
    highest: float
    log_sum: float

    @staticmethod
    def of(ops: Sampling, row: Logits) -> "Best":
        token, highest = ops.top(row)
        known = token >= 0 and math.isfinite(highest)
        return Best(token, highest, ops.log_sum(row, highest) if known else 0.0)


def choose(ops: Sampling, row: Logits, choice: Choice) -> Chosen:
    """As the head's sampler would have chosen of this row."""
    token, highest, log_sum = Best.of(ops, row)
    if token < 0 or not math.isfinite(highest):
        return Chosen(-1, 0.0, highest, highest)
    best, adjusted = highest, edited(row, choice)
    if adjusted is not row:
        token, best = ops.top(adjusted)
        if best == -math.inf:
            return Chosen(token, 0.0, highest, best)
    if choice.temperature > 0 and best < math.inf:
        c = choice
        token = ops.draw(adjusted, best, c.temperature, c.top_k, c.top_p, c.min_p, c.chance)
    return Chosen(token, float(row[token]) - log_sum, highest, best)


def edited(row: Logits, choice: Choice) -> Logits:
    """The logits with what is to be done to them; the very same array if that is nothing."""
    found = row
    if choice.edits is not None:
        found, edits = row.copy(), choice.edits
        values, penalty = found[edits.ids], choice.repetition_penalty
        repeated = np.where(values > 0, values / penalty, values * penalty)
        found[edits.ids] = np.where(edits.repeated, repeated, values)
        found[edits.ids] -= edits.subtract
        found[edits.ids] += edits.add
    if choice.mask is not None:
        allowed = np.unpackbits(choice.mask.view(np.uint8), bitorder="little")[: len(row)].astype(np.bool_)
        found = np.where(allowed, found, np.float32(-np.inf))
    return found


def is_best(choice: Choice) -> bool:
    """Whether it is the token with the highest logit, which comes with every step."""
    return choice.temperature == 0 and choice.edits is None and choice.mask is None


NUMBERS = ("temperature", "top_k", "top_p", "min_p", "chance", "repetition_penalty")


def asked(choice: Choice) -> Message:
    """The choice as a message."""
    message = Message("choose", {name: getattr(choice, name) for name in NUMBERS})
    if choice.edits is not None:
        message.arrays |= choice.edits._asdict()
    if choice.mask is not None:
        message.arrays["mask"] = choice.mask
    return message


def answered(message: Message) -> Choice:
    """The way back."""
    arrays = message.arrays
    edits = Edits(*(arrays[name] for name in Edits._fields)) if "ids" in arrays else None
    numbers = {name: message.fields[name] for name in NUMBERS}
    return Choice(**numbers, edits=edits, mask=arrays.get("mask"))


def ride(message: Message, expected: Mapping[int, Sequence[Choice]]) -> None:
    """Puts what will be asked of a step's rows, by sequence, into its message."""
    found = []
    for slot, choices in expected.items():
        for row, choice in enumerate(choices):
            found.append([slot, row, *(getattr(choice, name) for name in NUMBERS)])
            arrays = asked(choice).arrays
            message.arrays |= {f"{slot}.{row}.{name}": array for name, array in arrays.items()}
    if found:
        message.fields["choices"] = found


def ridden(message: Message) -> Iterator[tuple[int, int, Choice]]:
    """The way back: sequence, number among its rows, and how to choose there."""
    for slot, row, *numbers in message.fields.pop("choices", ()):
        prefix = f"{slot}.{row}."
        arrays = {
            name.removeprefix(prefix): array
            for name, array in message.arrays.items()
            if name.startswith(prefix)
        }
        yield slot, row, answered(Message("choose", dict(zip(NUMBERS, numbers, strict=True)), arrays))


class Ask(Protocol):
    """How the head asks the last stage: `begin` sends a question and gives what waits for the answer."""

    def begin(self, question: Message) -> Callable[[], Message]: ...


@dataclass(frozen=True)
class Row:
    """A row of logits that the last stage holds: of which step of which sequence."""

    slot: int
    step: int
    number: int  # among the rows of that sequence
    best: Best
    chosen: tuple[Choice, Chosen] | None = None  # what was asked along with the step, and the answer

    def where(self) -> dict[str, Any]:
        return {"slot": self.slot, "step": self.step, "row": self.number}


class RemoteLogits:
    """Logits [rows, vocab], or one row of them, on the last stage until somebody looks (`np.asarray`).  They are good
    until the next step of their sequence."""

    def __init__(self, ask: Ask, rows: Sequence[Row], vocab: int, single: bool = False):
        self._ask, self._rows, self._vocab, self._single = ask, rows, vocab, single

    def __len__(self) -> int:
        return self._vocab if self._single else len(self._rows)

    def __getitem__(self, where: int | slice) -> "RemoteLogits":
        rows = self._rows[where] if isinstance(where, slice) else [self._rows[where]]
        return RemoteLogits(self._ask, rows, self._vocab, not isinstance(where, slice))

    def __iter__(self) -> Iterator["RemoteLogits"]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float32]:
        del copy  # it always is one
        answers = [self._ask.begin(Message("logits", row.where())) for row in self._rows]
        rows: NDArray[np.float32] = np.stack([answer().arrays["logits"] for answer in answers])
        found = rows[0] if self._single else rows
        return found if dtype is None else found.astype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._vocab,) if self._single else (len(self._rows), self._vocab)

    def copy(self) -> "RemoteLogits":
        return self

    def for_the_engine(self) -> Logits:
        """As what it stands for."""
        return cast(Logits, self)

    def start(self, choice: Choice) -> "Asked":
        """See `Sampling.start`."""
        (row,) = self._rows
        token, highest, log_sum = row.best
        if not math.isfinite(highest):
            token = -1
        if is_best(choice):
            chosen = Chosen(token, highest - log_sum, highest, highest)
            return Asked(lambda: chosen)
        if row.chosen is not None and row.chosen[0] is choice:
            already = row.chosen[1]
            return Asked(lambda: already)
        question = asked(choice)
        question.fields |= row.where()
        answer = self._ask.begin(question)
        return Asked(
            lambda: Chosen(*take(answer().fields, token=int, logprob=float, highest=float, best=float))
        )


class Asked(Choosing):
    """A choice that the last stage makes."""

    def __init__(self, answer: Callable[[], Chosen]):
        self._answer = answer

    def result(self) -> Chosen:
        return self._answer()

"""Choosing tokens on the last stage, where logits are: few bytes cross, and it chooses what the head would have."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Choice, Choosing, Chosen, Edits, Logits, Sampling
from penstock.cluster.message import Message, take
from penstock.errors import ClusterError


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


# Of a choice, and from where to where each may be.
NUMBERS: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0, sys.float_info.max),
    "top_k": (0, (1 << 63) - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "chance": (0, 1),
    "repetition_penalty": (sys.float_info.min, sys.float_info.max),
}
# Of the fields of `Edits`.
EDITS: Final = [np.dtype(kind) for kind in (np.int64, np.bool_, np.float64, np.float32)]


def asked(choice: Choice) -> Message:
    """The choice as a message."""
    message = Message("choose", {name: getattr(choice, name) for name in NUMBERS})
    if choice.edits is not None:
        message.arrays |= choice.edits._asdict()
    if choice.mask is not None:
        message.arrays["mask"] = choice.mask
    return message


def answered(message: Message, vocab: int) -> Choice:
    """The way back.  Raises ClusterError if nothing can be chosen so from so many tokens."""
    numbers: dict[str, Any] = {}
    for name, (least, most) in NUMBERS.items():
        number: Any = message.fields.get(name)
        numbers[name] = number
        kinds = (int,) if name == "top_k" else (int, float)
        if type(number) not in kinds or not least <= number <= most:
            raise ClusterError(
                f"a message has {name} {number!r:.40}, expected a number from {least} to {most}"
            )
    mask = message.arrays.get("mask")
    if mask is not None and (mask.dtype != np.uint32 or mask.shape != (-(-vocab // 32),)):
        raise ClusterError(f"a message has a mask {mask.dtype} {mask.shape} for {vocab} tokens")
    return Choice(**numbers, edits=_edits(message.arrays, vocab), mask=mask)


def _edits(arrays: Mapping[str, NDArray[Any]], vocab: int) -> Edits | None:
    found = [arrays[name] for name in Edits._fields if name in arrays]
    if not found:
        return None
    ids = found[0]
    if [each.dtype for each in found] != EDITS or {each.shape for each in found} != {(ids.size,)}:
        raise ClusterError("a message has edits of logits that do not belong together")
    if not ((ids >= 0) & (ids < vocab)).all():
        raise ClusterError(f"a message edits logits of tokens that are none of {vocab}")
    return Edits(*found)


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


def ridden(message: Message, vocab: int) -> Iterator[tuple[int, int, Choice]]:
    """The way back: sequence, number among its rows, and how to choose there.  See `answered`."""
    choices = message.fields.pop("choices", [])
    (choices,) = take({"choices": choices}, choices=list)
    for each in choices:
        if type(each) is not list or len(each) != 2 + len(NUMBERS) or {type(n) for n in each[:2]} != {int}:
            raise ClusterError(f"a message has a choice {each!r:.40}, expected a sequence, a row and numbers")
        slot, row, *numbers = each
        prefix = f"{slot}.{row}."
        arrays = {
            name.removeprefix(prefix): array
            for name, array in message.arrays.items()
            if name.startswith(prefix)
        }
        yield slot, row, answered(Message("choose", dict(zip(NUMBERS, numbers, strict=True)), arrays), vocab)


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

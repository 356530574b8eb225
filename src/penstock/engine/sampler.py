"""From logits to a token.  The same seed gives the same token for the same logits, whatever else is running.

Order: penalties, logit bias, what a grammar allows, temperature, top-k, top-p, min-p, then one draw.
Log-probabilities are the model's own, before any of these.
"""

import math
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Choice, Choosing, Edits
from penstock.backend.base import Chosen as ChosenToken
from penstock.backend.base import Sampling as LogitOps
from penstock.engine.constraint import Constraint
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError, PenstockError

NOT_FINITE: Final = "the model produced logits that are not finite; its weights may be damaged"
ALL_FORBIDDEN: Final = "logit_bias: it forbids every token that may come next"


class Sampled(NamedTuple):
    token: int
    logprob: float
    top: list[tuple[int, float]]  # (token, log-probability), best first


class Sampler:
    """One request's choices: its random numbers and the tokens it has seen; `constraint` holds it to a form."""

    constraint: Constraint | None = None

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocab_size: int, ops: LogitOps):
        self.sampling, self.ops = sampling, ops
        for token in sampling.logit_bias:
            if not 0 <= token < vocab_size:
                raise OptionError(f"logit_bias: token {token} is outside the vocabulary of {vocab_size:,}")
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed % (1 << 64)
        self.seen = set(prompt)  # for the repetition penalty
        self.output: Counter[int] = Counter()
        self.count = 0
        self._vocab = vocab_size
        self._under_way: deque[Choosing] = deque()  # the next tokens, where they are chosen elsewhere
        self._tops: deque[tuple[int, float, float]] = deque()  # of the next logits, where these are here
        # `count` and `constraint`, and what `choices` gave for them
        self._asked: tuple[int, Constraint | None, list[Choice]] = (0, None, [])

    @property
    def choosing(self) -> Choosing | None:
        """The next token, where that is chosen elsewhere."""
        return self._under_way[0] if self._under_way else None

    def start(self, logits: NDArray[np.float32], *later: NDArray[np.float32]) -> None:
        """Begins to choose where the logits lie; `sample` with the same ones follows.  On the host all rows are
        looked at together.  Elsewhere those of several requests that have been started are chosen together, and so
        are those of tokens after the next one where nothing depends on what that is; `drop` forgets what nobody
        samples after all."""
        where: object = logits
        if isinstance(where, np.ndarray):
            if later:
                self._tops.extend(self.ops.tops([logits, *later]))
            return
        if self._under_way:
            return
        rows = (logits, *later)
        for row, choice in zip(rows, self.choices(len(rows)), strict=False):
            started = self.ops.start(row, choice)
            if started is None:
                return
            self._under_way.append(started)

    def choices(self, rows: int) -> list[Choice]:
        """How the next tokens are to be chosen, known before their logits are: of so many rows, or of the first alone
        where the others depend on what that gives.  The very same ones until a token is accepted."""
        count, constraint, found = self._asked
        s = self.sampling
        penalties = s.repetition_penalty != 1 or s.presence_penalty or s.frequency_penalty
        by_itself = self.constraint is None and not penalties
        wanted = 0 if s.top_logprobs else rows if by_itself else 1  # those need the logits themselves
        old = count != self.count or constraint is not self.constraint
        if wanted and (old or len(found) < wanted):
            mask = None if self.constraint is None else self.constraint.bits(self._vocab)
            edits = self._edits()
            found = [
                Choice(
                    s.temperature, s.top_k, s.top_p, s.min_p, self._chance(ahead) if s.temperature > 0 else 0.0,
                    s.repetition_penalty, edits, mask,
                )
                for ahead in range(wanted)
            ]  # fmt: skip
            self._asked = self.count, self.constraint, found
        return found[:wanted]

    def drop(self) -> None:
        """Nobody will sample what has been started."""
        self._under_way.clear()
        self._tops.clear()

    def sample(self, logits: NDArray[np.float32]) -> Sampled:
        """logits [vocab] → the next token"""
        self.start(logits)
        if self._under_way:
            return self._taken(self._under_way.popleft().result())
        logits = np.asarray(logits)
        likeliest, highest, norm = self._tops.popleft() if self._tops else self.ops.tops([logits])[0]
        if likeliest < 0 or not math.isfinite(highest):
            raise PenstockError(NOT_FINITE)
        adjusted = self._penalise(logits)
        if self.constraint is not None:
            adjusted = self.constraint.mask(adjusted)
        if adjusted is not logits:
            likeliest, highest = self.ops.top(adjusted)
            if highest == -math.inf:
                raise OptionError(ALL_FORBIDDEN)
        # A bias may be infinite; then there is nothing to draw.
        drawn = self.sampling.temperature > 0 and highest < math.inf
        token = self._draw(adjusted, highest) if drawn else likeliest
        self._accept(token)
        wanted = self.sampling.top_logprobs
        alternatives = self.ops.best(logits, wanted).tolist() if wanted else []
        return Sampled(
            token, float(logits[token]) - norm, [(t, float(logits[t]) - norm) for t in alternatives]
        )

    def _taken(self, chosen: ChosenToken) -> Sampled:
        if chosen.token < 0 or not math.isfinite(chosen.highest):
            raise PenstockError(NOT_FINITE)
        if chosen.best == -math.inf:
            raise OptionError(ALL_FORBIDDEN)
        self._accept(chosen.token)
        return Sampled(chosen.token, chosen.logprob, [])

    def _accept(self, token: int) -> None:
        if self.constraint is not None:
            self.constraint.accept(token)
        self.count += 1
        self.seen.add(token)
        self.output[token] += 1

    def _edits(self) -> Edits | None:
        """What `_penalise` does, as a list."""
        s = self.sampling
        repeated = self.seen if s.repetition_penalty != 1 else set()
        counted = self.output if s.presence_penalty or s.frequency_penalty else Counter[int]()
        ids = sorted({*repeated, *counted, *s.logit_bias})
        if not ids:
            return None
        return Edits(
            np.array(ids, np.int64),
            np.array([token in repeated for token in ids], np.bool_),
            np.array(
                [
                    s.presence_penalty + s.frequency_penalty * counted[token] if token in counted else 0.0
                    for token in ids
                ],
                np.float64,
            ),
            np.array([s.logit_bias.get(token, 0.0) for token in ids], np.float32),
        )

    def _penalise(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits with penalties and bias; the very same array if there are none."""
        s = self.sampling
        repeated = s.repetition_penalty != 1 and self.seen
        counted = self.output and (s.presence_penalty or s.frequency_penalty)
        if not (repeated or counted or s.logit_bias):
            return raw
        logits = raw.copy()
        if repeated:
            ids = np.fromiter(self.seen, np.int64)
            values = logits[ids]
            logits[ids] = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
        if counted:
            ids = np.fromiter(self.output, np.int64)
            counts = np.fromiter(self.output.values(), np.float64)
            logits[ids] -= s.presence_penalty + s.frequency_penalty * counts
        for token, bias in s.logit_bias.items():
            logits[token] += bias
        return logits

    def _draw(self, logits: NDArray[np.float32], highest: float) -> int:
        s = self.sampling
        return self.ops.draw(logits, highest, s.temperature, s.top_k, s.top_p, s.min_p, self._chance())

    def _chance(self, ahead: int = 0) -> float:
        """One number per step from a counter-based generator: independent of batch-mates and of earlier draws.
        ahead: of a later step"""
        counter = self.count + ahead
        return float(np.random.Generator(np.random.Philox(key=self.seed, counter=counter)).random())

"""One request being generated: its sampler, its text so far, and when it is over."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Sampling as LogitOps
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.stops import StopStrings
from penstock.errors import OptionError
from penstock.tokenizer import StreamDecoder, Tokenizer

NO_LIMIT: Final = 1 << 62  # tokens; the context ends before


@dataclass(frozen=True, slots=True)
class Step:
    """One generated token.  `text` is what it makes safe to show: complete characters, no part of a stop string.
    `finish_reason` is set on the last step: "stop" (EOS, stop token or stop string) or "length".

    >>> (step,) = engine.generate([0, 17, 4], 1, penstock.Sampling(temperature=0, top_logprobs=3))
    >>> step.top_logprobs[0] == (step.token, step.logprob)
    True
    """

    token: int
    logprob: float
    text: str = ""
    top_logprobs: list[tuple[int, float]] = field(default_factory=list)
    finish_reason: str | None = None


class Generation:
    """Turns a request's logits into steps, one at a time.  Without a tokenizer steps carry no text; without
    `max_tokens` they go on until the model or the context ends."""

    def __init__(
        self,
        session: Session | None,
        vocab_size: int,
        context: int,
        prompt: Sequence[int],
        max_tokens: int | None,
        sampling: Sampling,
        eos_ids: Collection[int],
        tokenizer: Tokenizer | None,
        ops: LogitOps,
    ):
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise OptionError(f"max_tokens is {max_tokens!r}, expected a positive whole number")
        if sampling.stop and tokenizer is None:
            raise OptionError("stop strings need a model with a tokenizer")
        self.session = session  # to be set before `next`
        self.remaining = NO_LIMIT if max_tokens is None else max_tokens
        self.context = context
        self.sampler = Sampler(sampling, prompt, vocab_size, ops)
        self.ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_ids))
        self.stops = StopStrings(sampling.stop)
        self.decoder: StreamDecoder | None = tokenizer.stream() if tokenizer else None

    def start(self, logits: NDArray[np.float32], *later: NDArray[np.float32]) -> None:
        """What `next` will be called with, one after another: see `Sampler.start`."""
        self.sampler.start(logits, *later)

    @property
    def is_last(self) -> bool:
        """Whether no token can follow the one that `next` will give."""
        assert self.session is not None
        return self.remaining == 1 or self.session.position >= self.context

    def settle(self) -> None:
        """Waits for the token that is being chosen, if one is."""
        if self.sampler.choosing is not None:
            self.sampler.choosing.result()

    def next(self, logits: NDArray[np.float32], position: int | None = None) -> Step:
        """The step that follows from the logits after the session's last token.  position: where that is; None: where
        the session stands."""
        assert self.session is not None
        position = self.session.position if position is None else position
        token, logprob, top = self.sampler.sample(logits)
        self.remaining -= 1
        text, reason = "", None
        if token in self.ends:
            reason = "stop"
        else:
            text = self.stops.push(self.decoder.push(token) if self.decoder else "")
            if self.stops.found:
                reason = "stop"
            elif self.remaining == 0 or position >= self.context:
                reason = "length"
        if reason is not None and not self.stops.found:
            text += self.stops.push(self.decoder.finish() if self.decoder else "") + self.stops.finish()
        return Step(token, logprob, text, top, reason)

"""How tokens are chosen: one value that Python, the command line and the server share.  `sampler.py` does it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import OptionError
from penstock.option import check, number, option, switch, texts, whole

CHOOSING: Final[dict[str, Any]] = {"commands": ("run", "chat"), "group": "Sampling"}
NOT_FINITE: Final = "the model produced logits that are not finite; its weights may be damaged"
ALL_FORBIDDEN: Final = "logit_bias: it forbids every token that may come next"
STOPPING: Final[dict[str, Any]] = {"commands": ("run",), "group": "Sampling"}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and when generation stops.  `temperature=0` is greedy: ties go to the lower id.

    Repetition penalty counts prompt and output, presence and frequency penalties the output alone.  `stop` are
    strings that end the text (and are not part of it); `stop_token_ids` end it like EOS does.  `top_logprobs` asks
    for that many alternatives with each token.

    >>> penstock.Sampling(temperature=0.6, top_p=0.95, seed=7).seed
    7
    >>> penstock.Sampling(temperature=-1)
    Traceback (most recent call last):
    penstock.errors.OptionError: temperature is -1, expected 0 (greedy) or a positive number
    """

    temperature: float = option(
        1.0, number(0, 1e6, "0 (greedy) or a positive number"), "0 is greedy.", **CHOOSING
    )
    top_k: int = option(
        0,
        whole(0, math.inf, "0 (off) or a positive whole number"),
        "Keep the k most likely tokens; 0 is off.",
        **CHOOSING,
    )
    top_p: float = option(
        1.0, number(0, 1, "0 to 1"), "Keep the most likely tokens up to this probability.", **CHOOSING
    )
    min_p: float = option(
        0.0, number(0, 1, "0 to 1"), "Drop tokens below this share of the likeliest one.", **CHOOSING
    )
    repetition_penalty: float = option(
        1.0,
        number(1e-6, 1e6, "a positive number (1 is off)"),
        "Divide logits of tokens already there.",
        **CHOOSING,
    )
    presence_penalty: float = option(
        0.0, number(-1e6, 1e6), "Subtract from tokens already generated.", **CHOOSING
    )
    frequency_penalty: float = option(0.0, number(-1e6, 1e6), "The same, once per occurrence.", **CHOOSING)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = option(
        None,
        whole(-math.inf, math.inf, "a whole number"),
        "Makes the choice of tokens repeatable.",
        unset="another one each time",
        **CHOOSING,
    )
    stop: Sequence[str] = option((), texts(), "Stop at this text; may be repeated.", **STOPPING)
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = option(False, switch(), "Go on past the end token.", **STOPPING)
    top_logprobs: int = option(
        0, whole(0, math.inf, "0 or more"), "With --json: alternatives per token.", **STOPPING
    )

    def __post_init__(self) -> None:
        check(self)
        if any(math.isnan(bias) for bias in self.logit_bias.values()):
            raise OptionError(f"logit_bias is {self.logit_bias!r}, expected numbers by token id")

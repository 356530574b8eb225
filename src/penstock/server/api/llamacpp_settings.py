"""How text is generated, under llama.cpp's names.

Samplers that do not exist here are refused where they would do something.  Answers do not depend on what is cached,
so `cache_prompt` only costs or saves time; and a request has no slot of its own, so `id_slot` may be any.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from penstock.chat.text_grammars import gbnf_grammar, json_grammar
from penstock.engine.constraint import Constraint, Grammar, GrammarError, Rules
from penstock.engine.sampling import Sampling
from penstock.engine.steps import NO_LIMIT
from penstock.server.api.shared import MAX_CHOICES, Body, Json, JsonObject, Stops, refusal
from penstock.server.service import Service

# What these samplers do cannot be done here; the values are those that do nothing.
NEUTRAL: Final[dict[str, Any]] = {
    "mirostat": 0,
    "dry_multiplier": 0,
    "xtc_probability": 0,
    "typical_p": 1,
    "dynatemp_range": 0,
    "lora": [],
}
NEVER: Final = -1e9  # a bias that lets nothing through


Bias = float | Literal[False]
Pair = Annotated[tuple[int | str, Bias], Field(strict=False)]  # JSON has lists alone


class CompletionSettings(Body):
    n_predict: int | None = Field(None, ge=-2)
    max_tokens: int | None = Field(None, ge=-2)
    n_cmpl: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stop: Stops | str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, gt=0)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    logit_bias: list[Pair] | dict[str, Bias] | None = None
    n_probs: int | None = Field(None, ge=0, le=100)
    post_sampling_probs: Literal[False] | None = None
    grammar: str | None = None
    json_schema: JsonObject | None = None
    n_indent: int | None = Field(None, ge=0)
    t_max_predict_ms: float | None = None
    id_slot: int | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    response_fields: list[str] | None = None
    mirostat: int | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None
    typical_p: float | None = None
    dynatemp_range: float | None = None
    lora: list[Any] | None = None

    @property
    def limit(self) -> int:
        """Of tokens; 0: the prompt is only read."""
        limits = [limit for limit in (self.n_predict, self.max_tokens) if limit is not None]
        return limits[0] if limits and limits[0] >= 0 else NO_LIMIT

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def check(self, parallel: int) -> None:
        for field, nothing in NEUTRAL.items():
            if getattr(self, field, None) not in (None, nothing):
                raise refusal(field, "not supported: there is no such sampler here")
        if self.id_slot is not None and not -1 <= self.id_slot < parallel:
            raise refusal("id_slot", f"there are slots 0 to {parallel - 1}, or -1 for any")
        if self.grammar and self.json_schema is not None:
            raise refusal("grammar", "either it or json_schema can be given, not both")

    def sampling(self, service: Service, choice: int) -> Sampling:
        given: dict[str, Any] = {
            "temperature": None if self.temperature is None else max(self.temperature, 0.0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        return Sampling(
            **{name: value for name, value in given.items() if value is not None},
            top_k=min(max(self.top_k or 0, 0), (1 << 31) - 1),
            seed=None if self.seed is None or self.seed < 0 else self.seed + choice,
            ignore_eos=bool(self.ignore_eos),
            top_logprobs=self.n_probs or 0,
            logit_bias=dict(self._biases(service)),
        )

    def _biases(self, service: Service) -> Iterator[tuple[int, float]]:
        """A text stands for all of its tokens, and `false` for never."""
        tokenizer = service.engine.tokenizer
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias or ()
        for token, bias in pairs:
            named = int(token) if isinstance(token, str) and token.isascii() and token.isdecimal() else token
            tokens = tokenizer.encode(named) if isinstance(named, str) else [named]
            if any(not 0 <= id < tokenizer.vocab_size for id in tokens):
                raise refusal("logit_bias", f"token ids go from 0 to {tokenizer.vocab_size - 1}")
            for id in tokens:
                yield id, NEVER if bias is False else bias

    @property
    def held(self) -> bool:
        return bool(self.grammar) or self.json_schema is not None

    def constraint(self, service: Service) -> Constraint | None:
        """What holds the text to a grammar; the client's field is named if it cannot be used."""
        field = "grammar" if self.grammar else "json_schema"
        try:
            if self.grammar:
                text = gbnf_grammar(self.grammar)
            elif self.json_schema is not None:
                text = json_grammar(self.json_schema)
            else:
                return None
            return service.driver.constraints.constrain(Rules(start=Grammar(text)))
        except GrammarError as error:
            raise refusal(field, str(error)) from None

    def echo(self, service: Service, sampling: Sampling) -> Json:
        """`generation_settings`: what was asked for, and what was used where nothing was."""
        used = {
            "n_predict": -1 if self.limit == NO_LIMIT else self.limit,
            "seed": -1 if sampling.seed is None else sampling.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop": list(self.stops),
            "n_ctx": service.engine.context,
            "model": service.settings.name,
        }
        hidden = {"prompt", "input_prefix", "input_suffix", "input_extra", "logit_bias"}
        return {**self.model_dump(exclude_unset=True, exclude=hidden), **used}

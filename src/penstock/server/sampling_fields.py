"""The fields of a request that say how tokens are chosen: the same names in all of OpenAI's APIs."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from penstock.engine.sampling import Sampling
from penstock.server.errors import ApiError

MOST_STOPS: Final = 16
MOST_CHOICES: Final = 8

Stop = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class SamplingFields(BaseModel):
    """Unknown fields are ignored, as clients send all sorts; known ones must have the right type.  A null is the
    same as a field that is not there."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)  # -1 is what some clients send for none
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    logit_bias: dict[str, Bias] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, gt=0)
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def limit(self) -> int | None:
        """Most tokens of an answer, by its new name or by its old one."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, choice: int = 0, **others: Any) -> Sampling:
        """How tokens of the choice with this number are drawn: with a seed, each choice has a seed of its own."""
        names = (
            "temperature",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
        )
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return Sampling(
            **given,
            top_k=min(max(self.top_k or 0, 0), (1 << 31) - 1),
            seed=None if self.seed is None else self.seed + choice,
            logit_bias=self._biases(),
            **others,
        )

    def _biases(self) -> dict[int, float]:
        biases = self.logit_bias or {}
        for token in biases:
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                message = f"logit_bias: {token!r} is not the id of a token"
                raise ApiError(400, message, code="invalid_value", param="logit_bias")
        return {int(token): bias for token, bias in biases.items()}

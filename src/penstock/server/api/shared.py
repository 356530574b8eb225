"""What several APIs have in common: strict fields, tools on offer, effort, sampling, answers in named events."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic_core import PydanticCustomError

from penstock.chat.driver import Token
from penstock.chat.events import Event
from penstock.chat.messages import Thinking
from penstock.engine.progress import PrefillProgress
from penstock.engine.sampling import Sampling
from penstock.server.http.errors import ApiError
from penstock.server.http.streams import named_event

EFFORTS: Final = {
    "none": Thinking.OFF,
    "minimal": Thinking.LOW,
    "low": Thinking.LOW,
    "medium": Thinking.HIGH,
    "high": Thinking.HIGH,
    "xhigh": Thinking.HIGH,
    "max": Thinking.MAX,
}
# DeepSeek's own names for its models → whether the model thinks under that name.
ALIASES: Final = {"deepseek-chat": False, "deepseek-reasoner": True}
MAX_STOPS: Final = 16
MAX_CHOICES: Final = 8

Stop = Annotated[str, Field(min_length=1, max_length=1024)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TurnUpdates = AsyncGenerator[PrefillProgress | Token, None]
Json = dict[str, Any]
JsonObject = dict[str, JsonValue]
Label = Annotated[str, Field(max_length=64)]
Metadata = Annotated[dict[Label, Annotated[str, Field(max_length=512)]], Field(max_length=16)]
UNKNOWN_TOOL: Final = "the tool '{kind}' does not exist here; this server knows tools of type {known}"
NOT_READ: Final = "{kind} cannot be read: this model knows text only"


class Body(BaseModel):
    """Fields have exactly the type that they should; fields that nobody knows are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


def text_as(kind: str) -> BeforeValidator:
    """Makes a plain string the list of one part that it is short for."""
    return BeforeValidator(lambda value: [{"type": kind, "text": value}] if isinstance(value, str) else value)


def thinking_for(effort: str | None, field: str, default: Thinking) -> Thinking:
    """How hard to think for an effort that a client names."""
    if effort is None:
        return default
    if effort not in EFFORTS:
        raise refusal(field, f"expected one of {', '.join(EFFORTS)}, found {effort!r}")
    return EFFORTS[effort]


# Parts of a message that are no text, under the names that APIs have for them.
NOT_TEXT: Final = {
    **dict.fromkeys(("image", "image_url", "input_image"), "images"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "sounds"),
    **dict.fromkeys(("video", "video_url", "input_video"), "videos"),
    **dict.fromkeys(("file", "input_file"), "files"),
}


def only_text(part: Any) -> Any:
    """Refuses parts that are no text, in one sentence for all APIs."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in NOT_TEXT:
        raise PydanticCustomError("not_text", NOT_READ, {"kind": NOT_TEXT[kind]})
    return part


def known_tool(*kinds: str) -> BeforeValidator:
    """Refuses tools of any other type by name: they would be run by a server, and this one runs none."""

    def check(tool: Any) -> Any:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            said = {"kind": kind[:64], "known": ", ".join(kinds)}
            raise PydanticCustomError("unsupported_tool", UNKNOWN_TOOL, said)
        return tool

    return BeforeValidator(check)


class Offer(NamedTuple):
    """The tools that the model is told of, which of them it may call (None: any), and whether it has to."""

    tools: tuple[dict[str, Any], ...]
    choice: tuple[str, ...] | None
    force: bool


def offer(tools: list[dict[str, Any]], choice: str, names: Collection[str] | None = None) -> Offer:
    """choice: "auto", "none" or "required", among those of `names` if there are any.  What is told stays the same
    whatever is chosen: a prompt that changes has to be read again."""
    known = [tool["name"] for tool in tools]
    for name in names or ():
        if name not in known:
            raise refusal("tool_choice", f"there is no tool {name!r}")
    if choice == "required" and not (known if names is None else names):
        raise refusal("tool_choice", "a call is required, but there are no tools")
    if choice == "none":
        names = ()
    return Offer(tuple(tools), None if names is None else tuple(names), choice == "required")


def refusal(field: str, why: str) -> ApiError:
    """A field of the request is to blame."""
    return ApiError(400, f"{field}: {why}", code="invalid_value", param=field)


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class SamplingFields(BaseModel):
    """How tokens are chosen, under the names that OpenAI's APIs share.  Unknown fields are ignored, as clients send
    all sorts; known ones must have the right type.  A null is the same as a field that is not there."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    max_completion_tokens: int | None = Field(None, ge=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)  # -1 is what some clients send for none
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: Stop | Stops | None = None
    logit_bias: dict[str, Bias] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, gt=0)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
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
                raise refusal("logit_bias", f"{token!r} is not the id of a token")
        return {int(token): bias for token, bias in biases.items()}


class NamedEvents(ABC):
    """An answer of an API whose events carry names: the events that tell how it comes about, and what it becomes."""

    @abstractmethod
    def begin(self) -> Iterable[Json]:
        """The first events."""

    @abstractmethod
    def read(self, event: Event) -> Iterable[Json]:
        """The events that follow from one of the turn's."""

    @abstractmethod
    def end(self) -> Iterable[Json]:
        """The last events."""

    @abstractmethod
    def whole(self) -> Json:
        """The answer, once the turn is over."""

    async def stream(self, turn: TurnUpdates) -> AsyncGenerator[str, None]:
        """Server-sent events of a turn."""
        async with aclosing(self._events(turn)) as events:
            async for made in events:
                yield named_event(made)

    async def collect(self, turn: TurnUpdates) -> Json:
        """The same turn, as a whole."""
        async with aclosing(self._events(turn)) as events:
            async for _ in events:
                pass
        return self.whole()

    async def _events(self, turn: TurnUpdates) -> AsyncGenerator[Json, None]:
        """Nothing comes before the request has its place in the queue."""
        async with aclosing(turn):
            begun = False
            async for update in turn:
                if not begun:
                    begun = True
                    for made in self.begin():
                        yield made
                for event in update.events if isinstance(update, Token) else ():
                    for made in self.read(event):
                        yield made
            for made in self.end():
                yield made

"""What Ollama's clients ask for.

Of `options`, samplers that do not exist here are refused where they would do something; what sets up a machine
(`num_ctx`, `num_gpu`, `num_thread`) is the server's own affair and means nothing.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.sampling import Sampling
from penstock.engine.steps import NO_LIMIT
from penstock.server.api.openai_chat_request import FunctionTool
from penstock.server.api.shared import NOT_READ, Body, JsonObject, Stops, offer, refusal, thinking_for

NEUTRAL: Final = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}  # what does nothing, of what cannot be done
Seconds = int | float | Annotated[str, Field(pattern=r"^-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h)?)+$")]


class Options(Body):
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = None
    top_p: float | None = Field(None, ge=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    num_predict: int | None = None
    stop: Stops | str | None = None
    repeat_penalty: float | None = Field(None, gt=0)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    tfs_z: float | None = None
    typical_p: float | None = None

    @property
    def limit(self) -> int:
        return NO_LIMIT if self.num_predict is None or self.num_predict < 0 else max(self.num_predict, 1)

    def sampling(self, top_logprobs: int) -> Sampling:
        for field, nothing in NEUTRAL.items():
            if getattr(self, field) not in (None, nothing):
                raise refusal(f"options.{field}", "not supported: there is no such sampler here")
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
        }
        return Sampling(
            **{name: value for name, value in given.items() if value is not None},
            top_k=min(max(self.top_k or 0, 0), (1 << 31) - 1),
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            top_logprobs=top_logprobs,
        )


class Asked(Body):
    """What both endpoints take."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    think: bool | str | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: Options | None = None
    keep_alive: Seconds | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def chosen(self) -> Options:
        return self.options or Options.model_validate({})

    def sampling(self) -> Sampling:
        return self.chosen.sampling((self.top_logprobs or 0) if self.logprobs else 0)

    def talk(self, messages: list[Message], tools: list[FunctionTool]) -> Conversation:
        told = offer([tool.function.model_dump(exclude_unset=True) for tool in tools], "auto")
        effort = self.think if isinstance(self.think, str) else "high" if self.think else None
        return Conversation(
            tuple(messages),
            told.tools,
            thinking_for(effort, "think", Thinking.OFF),
            response_schema=self.format if isinstance(self.format, dict) else None,
            json_only=self.format == "json",
            schema_field="format",
        )


class CalledFunction(Body):
    name: str
    arguments: JsonObject = Field(default_factory=dict)


class Call(Body):
    id: str | None = None
    function: CalledFunction


class ChatMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(Asked):
    messages: list[ChatMessage] | None = None
    tools: list[FunctionTool] | None = None

    def conversation(self) -> Conversation:
        return self.talk(list(self._messages()), self.tools or [])

    def _messages(self) -> Iterator[Message]:
        """Results of calls go by the name of what was called, if not by its id."""
        open_calls: list[ToolCall] = []
        for number, message in enumerate(self.messages or ()):
            place = f"messages[{number}]"
            if message.images:
                raise refusal(f"{place}.images", NOT_READ.format(kind="images"))
            calls = tuple(
                ToolCall(
                    call.id or f"call_{number}_{index}",
                    call.function.name,
                    json.dumps(call.function.arguments),
                )
                for index, call in enumerate(message.tool_calls or ())
            )
            open_calls += calls
            answered = _answered(message, open_calls, place) if message.role == "tool" else None
            yield Message(
                Role(message.role), message.content or "", message.thinking, calls, tool_call_id=answered
            )


def _answered(message: ChatMessage, calls: list[ToolCall], place: str) -> str:
    """The id of the call that a result answers, which is no longer open then."""
    for call in calls:
        named = (
            call.id == message.tool_call_id
            if message.tool_call_id
            else message.tool_name in (None, call.name)
        )
        if named:
            calls.remove(call)
            return call.id
    raise refusal(place, "the result answers no call before it")


class GenerateBody(Asked):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    images: list[Any] | None = None
    raw: bool | None = None
    template: Annotated[str, Field(max_length=0)] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None

    def conversation(self) -> Conversation:
        if self.images:
            raise refusal("images", NOT_READ.format(kind="images"))
        system = [Message(Role.SYSTEM, self.system)] if self.system else []
        return self.talk([*system, Message(Role.USER, self.prompt)], [])

"""What a client asks for.  What cannot be done here is refused by name; nothing that would change an answer is left
out in silence."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.engine.sampling import Sampling
from penstock.server.api.responses.items import (
    CustomCall,
    CustomCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Known,
    Reference,
    as_messages,
)
from penstock.server.api.responses.tools import (
    CallableTool,
    CustomTool,
    FunctionTool,
    Tool,
    ToolChoice,
    callables,
    grammars,
    offered,
)
from penstock.server.api.shared import (
    ALIASES,
    Body,
    Json,
    JsonObject,
    Metadata,
    Offer,
    refusal,
    thinking_for,
)

# What other servers do with these fields cannot be done here.  A value that asks for nothing is fine.
UNSUPPORTED: Final[dict[str, tuple[Any, str]]] = {
    "background": (False, "answers are made while their client waits"),
    "prompt": (None, "templates of prompts are not kept here; send instructions and input"),
    "conversation": (None, "conversations are not kept here; go on from a response by previous_response_id"),
    "context_management": ([], "nothing is compacted here; send what the model is to see"),
    "truncation": ("disabled", "only 'disabled' is supported: nothing is left out of a conversation"),
    "top_logprobs": (0, "log-probabilities come from /v1/chat/completions and /v1/completions"),
}
LOGPROBS: Final = "message.output_text.logprobs"


def _items(value: Any) -> Any:
    """A string is what a user says."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class Reasoning(Body):
    model_config = ConfigDict(extra="allow")
    effort: str | None = None
    summary: str | None = None


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None

    def check(self, field: str) -> None:
        if self.type == "json_schema" and self.schema_ is None:
            raise refusal(f"{field}.schema", "missing")

    @property
    def held(self) -> JsonObject | None:
        """The schema that the model is told of."""
        return self.schema_ if self.type == "json_schema" else None

    @property
    def any_object(self) -> bool:
        return self.type == "json_object" or (self.type == "json_schema" and self.strict is False)


class TextOptions(Body):
    model_config = ConfigDict(extra="allow")
    format: Format | None = None


class InputRequest(Body):
    """What is to be read: a request that has no answer."""

    model: str | None = None
    input: Annotated[list[Item], BeforeValidator(_items)] = Field(default_factory=list)
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None
    background: JsonValue = None
    prompt: JsonValue = None
    conversation: JsonValue = None
    context_management: JsonValue = None
    truncation: JsonValue = None
    top_logprobs: JsonValue = None

    @model_validator(mode="after")
    def _can_be_done(self) -> "InputRequest":
        for field, (nothing, why) in UNSUPPORTED.items():
            if getattr(self, field) not in (None, nothing):
                raise refusal(field, f"not supported: {why}")
        if LOGPROBS in (self.include or ()):
            raise refusal("include", f"not supported: {LOGPROBS!r}")
        return self

    def chat(self, items: list[Known] | None = None) -> Conversation:
        """items: those that this request goes on from, then its own."""
        if items is None:
            items = [item for item in self.input if not isinstance(item, Reference)]
        messages = [Message(Role.SYSTEM, self.instructions)] if self.instructions else []
        messages += as_messages(items)
        if not items:
            raise refusal("input", "missing")
        self._check_results(items)
        form = self.text.format if self.text else None
        if form is not None:
            form.check("text.format")
        tools = self.offer()
        return Conversation(
            tuple(messages),
            tools.tools,
            self.thinking(),
            choice=tools.choice,
            response_schema=form.held if form else None,
            json_only=form is not None and form.any_object,
            schema_field="text.format.schema",
            parallel_calls=self.parallel_tool_calls is not False,
            grammars=grammars(callables(self.tools or ())),
        )

    def _check_results(self, items: list[Known]) -> None:
        """Every output must answer a call that was made before it."""
        calls: set[str] = set()
        for number, item in enumerate(items, start=len(self.input) - len(items)):
            if isinstance(item, FunctionCall | CustomCall):
                calls.add(item.call_id)
            elif isinstance(item, FunctionCallOutput | CustomCallOutput) and item.call_id not in calls:
                raise refusal(f"input[{number}].call_id", f"{item.call_id!r} answers no call before it")

    def thinking(self) -> Thinking:
        default = Thinking.HIGH if ALIASES.get(self.model or "") else Thinking.OFF
        return thinking_for(self.reasoning.effort if self.reasoning else None, "reasoning.effort", default)

    def offer(self) -> Offer:
        return offered(callables(self.tools or ()), self.tool_choice)


class ResponsesRequest(InputRequest):
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, ge=0, le=1)
    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    @property
    def called(self) -> dict[str, CallableTool]:
        """Tools by the names that the model knows them by."""
        return {tool.name: tool for tool in callables(self.tools or ())}

    @property
    def keeps(self) -> bool:
        """Responses are kept unless a client says otherwise."""
        return self.store is not False

    def sampling(self) -> Sampling:
        given = {"temperature": self.temperature, "top_p": self.top_p}
        return Sampling(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def echo(self) -> Json:
        """The fields of a request that its response repeats, as they were sent."""
        reasoning = self.reasoning or Reasoning()
        text, choice = self.text or TextOptions(), self.tool_choice or "auto"
        form = text.format.model_dump(by_alias=True, exclude_unset=True) if text.format else {"type": "text"}
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None, **reasoning.model_dump(exclude_unset=True)},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": self.keeps,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"verbosity": "medium", **text.model_dump(exclude_unset=True), "format": form},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_unset=True),
            "tools": [_echo(tool) for tool in self.tools or ()],
            "top_logprobs": 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }


def _echo(tool: Tool) -> Json:
    sent: Json = tool.model_dump(exclude_unset=True)
    if isinstance(tool, CustomTool):
        return {"description": None, "format": {"type": "text"}, **sent}
    defaults = {"description": None, "parameters": None, "strict": None}
    return {**defaults, **sent} if isinstance(tool, FunctionTool) else sent

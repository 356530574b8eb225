"""Tools that a request offers, and which of them it lets the model call."""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from penstock.chat.messages import TextGrammar
from penstock.server.api.custom_tools import AnyText, GrammarFormat, as_function, grammar_of
from penstock.server.api.shared import Body, Json, JsonObject, Offer, offer, refusal

CALLABLE: Final = ("function", "custom")


class FunctionTool(Body):
    """Its fields lie flat.  What else it has comes back as it was sent."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class CustomTool(Body):
    model_config = ConfigDict(extra="allow")
    type: Literal["custom"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    format: Annotated[AnyText | GrammarFormat, Field(discriminator="type")] | None = None


def _known(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind not in CALLABLE:
        raise PydanticCustomError(
            "unsupported_tool",
            "the tool '{kind}' does not exist here; this server knows tools of type function and custom",
            {"kind": kind[:64]},
        )
    return tool


Tool = Annotated[Annotated[FunctionTool | CustomTool, Field(discriminator="type")], BeforeValidator(_known)]


class NamedTool(Body):
    type: str
    name: str = ""


class ToolChoice(Body):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] = Field(default_factory=list)


def offered(tools: list[FunctionTool | CustomTool], choice: str | ToolChoice | None) -> Offer:
    """What the model is told, and what it may call."""
    functions = [told(tool) for tool in tools]
    match choice:
        case None:
            return offer(functions, "auto")
        case "auto" | "none" | "required":
            return offer(functions, choice)
        case ToolChoice(type="function" | "custom", name=str(name)):
            return offer(functions, "required", [_checked(tools, NamedTool(type=choice.type, name=name))])
        case ToolChoice(type="allowed_tools", mode=mode):
            return offer(functions, mode, [_checked(tools, tool) for tool in choice.tools])
        case ToolChoice(type="function" | "custom"):
            raise refusal("tool_choice.name", "missing")
    word = choice if isinstance(choice, str) else choice.type
    expected = "auto, none, required, allowed_tools or the name of a function or custom tool"
    raise refusal("tool_choice", f"{word[:64]!r} is not supported here; expected {expected}")


def _checked(tools: list[FunctionTool | CustomTool], named: NamedTool) -> str:
    if named.type not in CALLABLE:
        raise refusal("tool_choice", f"the tool {named.type[:64]!r} does not exist here")
    if not any(tool.type == named.type and tool.name == named.name for tool in tools):
        raise refusal("tool_choice", f"there is no {named.type} tool {named.name!r} among tools")
    return named.name


def told(tool: FunctionTool | CustomTool) -> Json:
    """The function that the model is told of."""
    if isinstance(tool, CustomTool):
        return as_function(tool.name, tool.description, grammar_of(tool.format))
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.parameters or {}}


def grammars(tools: list[FunctionTool | CustomTool]) -> dict[str, TextGrammar]:
    """Those of custom tools, by name."""
    found = {tool.name: grammar_of(tool.format) for tool in tools if isinstance(tool, CustomTool)}
    return {name: grammar for name, grammar in found.items() if grammar is not None}

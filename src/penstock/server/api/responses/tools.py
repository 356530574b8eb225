"""Tools that a request offers, and which of them it lets the model call.

Tools of a namespace are told to the model as `namespace.tool`, and their calls name the two apart.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field

from penstock.chat.messages import TextGrammar
from penstock.server.api.custom_tools import AnyText, GrammarFormat, as_function, grammar_of
from penstock.server.api.shared import Body, Json, JsonObject, Offer, known_tool, offer, refusal

CALLABLE: Final = ("function", "custom")
KNOWN: Final = (*CALLABLE, "namespace")


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


class Namespace(Body):
    model_config = ConfigDict(extra="allow")
    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    tools: list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]]


Tool = Annotated[
    Annotated[FunctionTool | CustomTool | Namespace, Field(discriminator="type")], known_tool(*KNOWN)
]


class CallableTool(NamedTuple):
    """A tool that can be called."""

    tool: FunctionTool | CustomTool
    namespace: str | None

    @property
    def name(self) -> str:
        """That the model knows it by."""
        return full_name(self.tool.name, self.namespace)

    @property
    def is_custom(self) -> bool:
        return isinstance(self.tool, CustomTool)


def full_name(name: str, namespace: str | None) -> str:
    return name if namespace is None else f"{namespace}.{name}"


def callables(tools: Iterable[Tool]) -> list[CallableTool]:
    found: list[CallableTool] = []
    for tool in tools:
        if isinstance(tool, Namespace):
            found += [CallableTool(inner, tool.name) for inner in tool.tools]
        else:
            found.append(CallableTool(tool, None))
    return found


class NamedTool(Body):
    model_config = ConfigDict(extra="allow")
    type: str
    name: str = ""
    namespace: str | None = None


class ToolChoice(Body):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] = Field(default_factory=list)


def offered(tools: list[CallableTool], choice: str | ToolChoice | None) -> Offer:
    """What the model is told, and what it may call."""
    functions = [_told(tool) for tool in tools]
    match choice:
        case None:
            return offer(functions, "auto")
        case "auto" | "none" | "required":
            return offer(functions, choice)
        case ToolChoice(type="function" | "custom", name=str(name)):
            named = NamedTool(type=choice.type, name=name, namespace=choice.namespace)
            return offer(functions, "required", _chosen(tools, named))
        case ToolChoice(type="allowed_tools", mode=mode):
            return offer(functions, mode, [name for named in choice.tools for name in _chosen(tools, named)])
        case ToolChoice(type="function" | "custom"):
            raise refusal("tool_choice.name", "missing")
    word = choice if isinstance(choice, str) else choice.type
    expected = "auto, none, required, allowed_tools or the name of a function or custom tool"
    raise refusal("tool_choice", f"{word[:64]!r} is not supported here; expected {expected}")


def _chosen(tools: list[CallableTool], named: NamedTool) -> list[str]:
    """The names of what a choice means: one tool, or all of a namespace."""
    if named.type not in KNOWN:
        raise refusal("tool_choice", f"the tool {named.type[:64]!r} does not exist here")
    found = [
        tool.name
        for tool in tools
        if (tool.namespace if named.type == "namespace" else tool.tool.name) == named.name
        and (named.type == "namespace" or tool.tool.type == named.type)
        and named.namespace in (None, tool.namespace)
    ]
    if not found:
        raise refusal("tool_choice", f"there is no {named.type} {named.name!r} among tools")
    return found


def _told(tool: CallableTool) -> Json:
    """The function that the model is told of."""
    named = tool.tool
    if isinstance(named, CustomTool):
        return as_function(tool.name, named.description, grammar_of(named.format))
    described = {} if named.description is None else {"description": named.description}
    return {"name": tool.name, **described, "parameters": named.parameters or {}}


def grammars(tools: list[CallableTool]) -> dict[str, TextGrammar]:
    """Those of custom tools, by name."""
    found = {tool.name: grammar_of(tool.tool.format) for tool in tools if isinstance(tool.tool, CustomTool)}
    return {name: grammar for name, grammar in found.items() if grammar is not None}

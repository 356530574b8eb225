"""Calling tools that were never seen before, and saying what came back."""

import json
from random import Random
from typing import Any

from penstock.chat.messages import Conversation, Message, Role, ToolCall
from pocket.data import facts, words
from pocket.data.core import Answer, Check, Dialogue, Exchange, Request, containing, mode, said
from pocket.data.grammar import expand, listed, pick, with_articles
from pocket.data.toolbox import Tool, new_tool

Call = tuple[str, dict[str, Any]]


def build(rng: Random, request: Request) -> Dialogue:
    offered = _offered(rng, request)
    target = offered[0]
    shown = rng.sample(offered, len(offered))
    schemas = tuple(tool.schema() for tool in shown)
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append(Message(Role.SYSTEM, pick(_SYSTEMS, rng)))
    draw = rng.random()
    if draw < 0.1 and not request.held_out:
        return _without(request, schemas, messages, facts.exchange(rng))
    if draw < 0.14 and not request.held_out:
        return _without(request, schemas, messages, _unavailable(rng, offered))
    uses = [target]
    if rng.random() < 0.2:
        uses.append(rng.choice(offered))
    cut, check = _call(rng, request, messages, uses)
    if rng.random() < 0.2 and not request.held_out:  # and again, in the next turn
        cut, check = _call(rng, request, messages, [rng.choice(offered)])
    if request.held_out and rng.random() < 0.7:
        del messages[cut + 1 :]
    else:
        cut, check = len(messages) - 1, containing(*_values(messages))
    return Dialogue(Conversation(tuple(messages), schemas, mode(request)), cut, check)


_SYSTEMS = (
    "You are a helpful assistant.",
    "You can use tools.",
    "Use the tools when they help.",
    "You are the assistant of {name}.",
)


def same_calls(expected: list[Call]) -> Check:
    return lambda answer: answer.finished and answer.tool_calls == expected


def _offered(rng: Random, request: Request) -> list[Tool]:
    """One to four tools with different names; the first is the one to use."""
    tools: dict[str, Tool] = {}
    count = rng.choice((1, 2, 2, 3, 3, 4))
    while len(tools) < count:
        tool = new_tool(rng)
        must_be_new = request.held_out and not tools
        if tool.held_out() == must_be_new or (request.held_out and tools):
            tools.setdefault(tool.name, tool)
    return list(tools.values())


def _call(rng: Random, request: Request, messages: list[Message], uses: list[Tool]) -> tuple[int, Check]:
    """Request, call, results, final sentence.  Returns where the call is and its check."""
    asked, calls = [], []
    for tool in uses:
        text, arguments = _use(rng, tool)
        asked.append(text)
        calls.append((tool.name, arguments))
    messages.append(Message(Role.USER, _polite(rng, asked)))
    first = sum(len(message.tool_calls) for message in messages) + 1
    tool_calls = tuple(
        ToolCall(f"call_{number}", name, json.dumps(arguments, ensure_ascii=False))
        for number, (name, arguments) in enumerate(calls, first)
    )
    reasons = [_reason(tool, arguments) for tool, (_, arguments) in zip(uses, calls, strict=True)]
    cut = len(messages)
    reasoning = " ".join(reasons) if request.thinking else None
    messages.append(Message(Role.ASSISTANT, "", reasoning, tool_calls))
    sentences = []
    for tool, call in zip(uses, tool_calls, strict=True):
        result, sentence = _result(rng, tool)
        messages.append(Message(Role.TOOL, result, tool_call_id=call.id))
        sentences.append(sentence)
    thought = "The tools answered." if len(uses) > 1 else "The tool answered."
    messages.append(said(" ".join(sentences), thought, request))
    return cut, same_calls(calls)


def _use(rng: Random, tool: Tool) -> tuple[str, dict[str, Any]]:
    """A request in words and the arguments that it gives."""
    arguments: dict[str, Any] = {}
    phrases = []
    for index, parameter in enumerate(tool.parameters):
        if index >= tool.required and rng.random() < 0.4:
            continue
        value = parameter.values(rng)
        arguments[parameter.name] = value
        if parameter.kind == "boolean":
            phrases.append(parameter.phrases[0 if value else 1])
        elif rng.random() < 0.12:
            phrases.append(f"with {parameter.name} {value}")
        else:
            phrases.append(rng.choice(parameter.phrases).replace("{v}", str(value)))
    return " ".join([tool.verb, "the", tool.noun, *phrases]), arguments


def _polite(rng: Random, asked: list[str]) -> str:
    values = {"ask": " and then ".join(asked) if rng.random() < 0.5 else " and ".join(asked)}
    return pick(
        (
            "{Ask}.",
            "Please {ask}.",
            "Can you {ask}?",
            "Could you [please |]{ask}?",
            "I want you to {ask}.",
            "I need you to {ask}.",
            "Hi! [Please |]{ask}.",
            "{Ask}, please.",
        ),
        rng,
        values | {"Ask": values["ask"][0].upper() + values["ask"][1:]},
    )


def _reason(tool: Tool, arguments: dict[str, Any]) -> str:
    given = [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()]
    return f"To {tool.verb} the {tool.noun} I call {tool.name}" + (
        f" with {listed(given)}." if given else "."
    )


_FIELDS = (
    "status",
    "temperature",
    "level",
    "total",
    "number",
    "place",
    "owner",
    "price",
    "time",
    "colour",
    "result",
)


def _result(rng: Random, tool: Tool) -> tuple[str, str]:
    """What a tool returns, and the sentence that tells it."""
    draw = rng.random()
    if draw < 0.12:
        problem = expand("[no such {thing}|the {noun} is busy|connection lost|code {n} is wrong|not allowed]", rng,
                         {"noun": tool.noun, "n": str(rng.randrange(1000, 10000))})  # fmt: skip
        return json.dumps({"error": problem}), f"That did not work: {problem}."
    if draw < 0.35:
        text = expand("The {noun} is [{adj}|{colour}|ready in {n} minutes|done|open until {n}].", rng,
                      {"noun": tool.noun, "n": str(rng.randrange(2, 60))})  # fmt: skip
        return text, text
    if draw < 0.5:
        return json.dumps({"ok": True}), f"Done: {tool.verb} the {tool.noun}."
    fields = rng.sample(_FIELDS, rng.choice((1, 1, 2, 3)))
    values = {name: _value(rng, name) for name in fields}
    told = listed([f"the {name} is {value}" for name, value in values.items()])
    return json.dumps(values, ensure_ascii=False), f"{told[0].upper()}{told[1:]}."


def _value(rng: Random, name: str) -> Any:
    if name in ("temperature", "level", "total", "number", "price"):
        return rng.randrange(1, 1000)
    if name == "time":
        return f"{rng.randrange(24):02}:{rng.randrange(60):02}"
    source = {"place": "town", "owner": "name", "colour": "colour", "status": "adj", "result": "feeling"}[
        name
    ]
    return rng.choice(words.LISTS[source])


def _values(messages: list[Message]) -> list[str]:
    """What the final sentence must contain: the values of the last results."""
    values: list[str] = []
    for message in reversed(messages[:-1]):
        if message.role is not Role.TOOL:
            break
        if message.content.startswith("{"):
            parsed = json.loads(message.content)
            values += [str(value) for value in parsed.values() if value is not True]
        else:
            values.append(message.content.rstrip("."))
    return values or ["done"]


def _unavailable(rng: Random, offered: list[Tool]) -> Exchange:
    nouns = {tool.noun for tool in offered}
    tool = next(tool for tool in iter(lambda: new_tool(rng), None) if tool.noun not in nouns)
    question = _polite(rng, [_use(rng, tool)[0]])
    content = with_articles(f"I have no tool to {tool.verb} the {tool.noun}.")
    return Exchange(question, content, "None of the tools can do this.", containing("no tool"))


def _without(
    request: Request,
    schemas: tuple[dict[str, Any], ...],
    messages: list[Message],
    turn: Exchange,
) -> Dialogue:
    messages += [Message(Role.USER, turn.question), said(turn.content, turn.reasoning, request)]

    def check(answer: Answer) -> bool:
        return not answer.tool_calls and turn.check(answer)

    return Dialogue(Conversation(tuple(messages), schemas, mode(request)), len(messages) - 1, check)

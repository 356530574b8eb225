"""A conversation becomes a prompt, as DeepSeek's own encoder writes it.

    BOS [effort] [system] <｜User｜>question <｜Assistant｜>[<think>reasoning]</think>answer[calls] EOS
                          <｜User｜>question <｜Assistant｜><think>

(written in two lines here; nothing stands between turns besides the markers)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from penstock.chat.deepseek_v4.markers import (
    ACTION,
    ASSISTANT,
    BOS,
    END_THINK,
    EOS,
    REMINDER,
    TASKS,
    THINK,
    USER,
)
from penstock.chat.deepseek_v4.tools import call_blocks, forced_call_prefix, to_json, tools_block
from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.chat.prompt import Piece, Prompt
from penstock.errors import OptionError

_RESPONSE_SCHEMA = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
_JSON_ONLY = (
    "\n\nYou are a helpful assistant designed to output JSON.\n"
    "## Response Format:\n\nReply with JSON object ONLY."
)
_USER_ROLES = (Role.USER, Role.DEVELOPER, Role.TOOL)
_ONE_TURN = (Role.USER, Role.TOOL)  # neighbours of these roles are one turn

Numbered = tuple[int, Message]


class Encoding(StrEnum):
    """Which release's prompt format: they differ in what reasoning efforts mean."""

    APRIL = "april"
    V0731 = "0731"

    @classmethod
    def named(cls, name: str) -> "Encoding":
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise OptionError(f"chat format is {name!r}, expected one of {known}") from None


# What is said to the model about how hard to think, right after BOS.
_THOROUGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_RELENTLESS = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)

# The release of 0731 moved every effort down one level: its "high" says what "max" said in April.
_PREFIXES = {
    (Encoding.APRIL, Thinking.MAX): _THOROUGH,
    (Encoding.V0731, Thinking.HIGH): _THOROUGH,
    (Encoding.V0731, Thinking.MAX): _RELENTLESS,
}


def render(
    conversation: Conversation,
    *,
    encoding: Encoding = Encoding.APRIL,
    generate: bool = True,
    continue_final: bool = False,
    force_call: bool = False,
) -> Prompt:
    """The prompt of a conversation.

    encoding        the release, where the conversation names none
    generate        end with the marker that makes the model speak, whatever the last message is
    continue_final  leave the last message, an assistant's, open for the model to go on with; one without an answer
                    is continued in its reasoning, and an empty one is the same as none
    force_call      end with the beginning of a tool call (`forced_call_prefix`); the model gets no room to reason
    """
    last = conversation.messages[-1] if conversation.messages else None
    if continue_final and (last is None or last.role is not Role.ASSISTANT):
        raise OptionError("only a conversation whose last message is the assistant's can be continued")
    if force_call and continue_final:
        raise OptionError("a call cannot be forced while an answer is continued")
    if force_call and last is not None and last.task:
        raise OptionError("a call cannot be forced while a task is to be done")
    release = Encoding.named(conversation.encoding) if conversation.encoding else encoding
    effort = _PREFIXES.get((release, conversation.thinking), "")
    pieces = [Piece(BOS, special=True, place="bos"), Piece(effort)]
    pieces += _system(conversation)
    pieces += _turns(conversation, continue_final)
    if generate and not continue_final:
        thinks = conversation.thinking is not Thinking.OFF and not force_call
        pieces += _task(last.task, thinks) if last is not None and last.task else _speaker(thinks)
        pieces += forced_call_prefix() if force_call else ()
    kept = tuple(piece for piece in pieces if piece.text or piece.ids)
    thinking = next((p.text == THINK for p in reversed(kept) if p.special), False)
    return Prompt(kept, thinking, continues=continue_final, forced=force_call)


def _speaker(thinks: bool, message: int | None = None) -> tuple[Piece, Piece]:
    """The markers that give the model the word: to reason first, or to answer."""
    return (
        Piece(ASSISTANT, special=True, message=message, place="turn"),
        Piece(THINK if thinks else END_THINK, special=True, message=message, place="speech"),
    )


def _task(task: str, thinks: bool, message: int | None = None) -> Iterator[Piece]:
    """What makes the model do a task instead of answering; it does not reason about it."""
    if task not in TASKS:
        raise OptionError(f"task is {task!r}, expected one of {', '.join(TASKS)}")
    marker = f"<｜{task}｜>"
    if marker == ACTION:
        yield from _speaker(thinks, message)
    yield Piece(marker, special=True, message=message, place="speech")


def _system(conversation: Conversation) -> Iterator[Piece]:
    """All system messages, wherever they stand, then the tools and the form of the answer."""
    messages = [(i, m) for i, m in enumerate(conversation.messages) if m.role is Role.SYSTEM]
    for place, (index, message) in enumerate(messages):
        if place:
            yield Piece("\n\n")
        yield Piece(message.content, message=index)
    if conversation.tools:
        yield Piece("\n\n")  # also without system text: DeepSeek's encoder appends to an empty one
        yield from tools_block(conversation.tools)
    if conversation.response_schema is not None:
        yield Piece(_RESPONSE_SCHEMA + to_json(conversation.response_schema))
    elif conversation.json_only:
        yield Piece(_JSON_ONLY)


def _turns(conversation: Conversation, continue_final: bool) -> Iterator[Piece]:
    messages = conversation.messages
    thinking = conversation.thinking is not Thinking.OFF
    last_user = max((i for i, m in enumerate(messages) if m.role in _USER_ROLES), default=-1)
    # With tools the model is used to seeing all it thought; without, only what follows the last question.
    keeps_all = bool(conversation.all_tools) or conversation.drop_thinking is False
    turns = _grouped(messages)
    calls: list[str] = []  # ids of the calls that the next results answer
    task: str | None = None  # that the next answer is to
    for number, turn in enumerate(turns):
        index, message = turn[0]
        if message.role is Role.ASSISTANT:
            is_open = continue_final and number == len(turns) - 1
            keeps = thinking and task is None and (keeps_all or index > last_user)
            before = _task(task, thinking, index) if task else _speaker(keeps, index)
            yield from _assistant(message, index, keeps, is_open, before)
            calls += [call.id for call in message.tool_calls]
            task = None
        elif message.role is Role.REMINDER:
            yield Piece(REMINDER, special=True, message=index, place="turn")
            yield Piece(message.content, message=index)
        else:
            task = turn[-1][1].task
            if message.role is not Role.DEVELOPER:
                yield from _user(turn, calls)
                calls = []
            elif not thinking or keeps_all or index >= last_user:
                yield from _developer(message, index)


def _grouped(messages: Sequence[Message]) -> list[list[Numbered]]:
    """Messages as turns: neighbouring user messages and tool results are one, every other message is its own."""
    turns: list[list[Numbered]] = []
    for index, message in enumerate(messages):
        if message.role is Role.SYSTEM:
            continue
        last = turns[-1][-1][1] if turns else None
        if last and not last.task and {message.role, last.role} <= {*_ONE_TURN}:
            turns[-1].append((index, message))
        else:
            turns.append([(index, message)])
    return turns


def _developer(message: Message, index: int) -> Iterator[Piece]:
    yield Piece(USER, special=True, message=index, place="turn")
    yield Piece(message.content, message=index)
    if message.tools:
        yield Piece("\n\n", message=index)
        yield from tools_block(message.tools)


def _user(turn: Sequence[Numbered], calls: Sequence[str]) -> Iterator[Piece]:
    """One user turn.  Results trade places so that they come in the order of the calls; texts stay where they are."""
    results = [(index, message) for index, message in turn if message.role is Role.TOOL]
    order = {call: place for place, call in reversed(list(enumerate(calls)))}
    results.sort(key=lambda numbered: order.get(numbered[1].tool_call_id or "", 0))
    in_order = iter(results)
    for place, (index, message) in enumerate(turn):
        yield Piece("\n\n") if place else Piece(USER, special=True, message=index, place="turn")
        if message.role is Role.TOOL:
            index, message = next(in_order)
            yield Piece(f"<tool_result>{message.content}</tool_result>", message=index)
        else:
            yield Piece(message.content, message=index)


def _assistant(
    message: Message, index: int, keeps_reasoning: bool, is_open: bool, before: Iterable[Piece]
) -> Iterator[Piece]:
    """One turn of the assistant's.  before: the markers that gave it the word."""
    yield from before
    body = list(_answer(message, index, keeps_reasoning, is_open))
    as_generated = keeps_reasoning == (message.reasoning is not None)
    if message.sampled is not None and as_generated and not is_open:
        yield Piece("".join(piece.text for piece in body), message=index, ids=message.sampled)
    else:
        yield from (body if is_open else (replace(piece, said=True) for piece in body))
    if not is_open:
        yield Piece(EOS, special=True, message=index, place="eos")


def said(message: Message) -> tuple[Piece, ...]:
    """What an assistant's message says, as a later prompt repeats it while it keeps the reasoning."""
    return tuple(p for p in _answer(message, 0, message.reasoning is not None, False) if p.text)


def _answer(message: Message, index: int, keeps_reasoning: bool, is_open: bool) -> Iterator[Piece]:
    still_reasoning = is_open and not message.content and not message.tool_calls
    if keeps_reasoning:
        yield Piece(message.reasoning or "", message=index)
        if not still_reasoning:
            yield Piece(END_THINK, special=True, message=index, place="speech")
    yield Piece(message.content, message=index)
    yield from call_blocks(message.tool_calls, index)

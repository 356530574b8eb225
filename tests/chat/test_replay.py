"""A conversation that comes back as text gets the tokens that the model chose."""

import sqlite3
from pathlib import Path

from penstock.chat.deepseek_v4 import DeepSeekV4Format
from penstock.chat.deepseek_v4.render import render
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.chat.replay import LruStore, Replay
from penstock.pocket import pocket_path
from penstock.tokenizer import Tokenizer, tokenizer_from_gguf
from penstock.weights.opening import open_checkpoint

TOKENIZER: Tokenizer = tokenizer_from_gguf(open_checkpoint(pocket_path()).metadata, "pocket")
RAW = (
    "\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="false">[1,2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    "</｜DSML｜tool_calls>"
)
CALL = ToolCall("call_1", "f", '{"a": [1,2]}', raw=RAW)
TOOLS = ({"name": "f", "parameters": {"type": "object"}},)


def replay(memory: LruStore | None = None, model: str = "m") -> Replay:
    return Replay(DeepSeekV4Format(), model, TOKENIZER.vocab_size, memory or LruStore())


def user(text: str) -> Message:
    return Message(Role.USER, text)


def other_spelling(text: str) -> list[int]:
    """Tokens for the text that are not those an encoder would choose."""
    return [token for letter in text for token in TOKENIZER.encode(letter)]


def test_an_answer_keeps_its_tokens() -> None:
    asked = Conversation((user("Hello"),))
    memory = replay()
    prompt = render(asked).encode(TOKENIZER)
    sampled = other_spelling("Hello! How can I help?")
    memory.remember(prompt, Message(Role.ASSISTANT, "Hello! How can I help?"), sampled)
    assert sampled != TOKENIZER.encode("Hello! How can I help?")

    back = Conversation((user("Hello"), Message(Role.ASSISTANT, "Hello! How can I help?"), user("Bye")))
    encoded = render(back).encode(TOKENIZER, memory.recall)
    assert encoded.ids[: len(prompt.ids) + len(sampled)] == [*prompt.ids, *sampled]
    assert TOKENIZER.decode(encoded.ids) == TOKENIZER.decode(render(back).ids(TOKENIZER))
    # Other words, another question, or another model: the text is encoded as any other.
    for changed in (
        Conversation((user("Hello"), Message(Role.ASSISTANT, "Hello. How can I help?"), user("Bye"))),
        Conversation((user("Hello."), Message(Role.ASSISTANT, "Hello! How can I help?"), user("Bye"))),
    ):
        assert render(changed).encode(TOKENIZER, memory.recall).ids == render(changed).ids(TOKENIZER)
    assert render(back).encode(TOKENIZER, replay(model="n").recall).ids == render(back).ids(TOKENIZER)


def test_markers_spelled_in_an_answer_are_not_markers() -> None:
    asked = Conversation((user("Hello"),), thinking=Thinking.HIGH)
    memory = replay()
    prompt = render(asked).encode(TOKENIZER)
    thought = Message(Role.ASSISTANT, "b", reasoning="a")
    memory.remember(prompt, thought, [1, 2, 3])
    spelled = Message(Role.ASSISTANT, "", reasoning="a</think>b")
    for answer, known in ((thought, True), (spelled, False)):
        back = Conversation((user("Hello"), answer, user("x")), TOOLS, thinking=Thinking.HIGH)
        before = render(Conversation((user("Hello"),), TOOLS, thinking=Thinking.HIGH)).encode(TOKENIZER)
        memory.remember(before, thought, [1, 2, 3])
        ids = render(back).encode(TOKENIZER, memory.recall).ids
        assert (ids[len(before.ids) : len(before.ids) + 3] == [1, 2, 3]) is known


def test_calls_are_replayed_as_they_were_written() -> None:
    memory = replay()
    prompt = render(Conversation((user("go"),), TOOLS)).encode(TOKENIZER)
    memory.remember(prompt, Message(Role.ASSISTANT, "", tool_calls=(CALL,)), [5])
    spaced = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("call_1", "f", '{ "a": [1, 2] }'),))
    back = Conversation((user("go"), spaced, Message(Role.TOOL, "ok", tool_call_id="call_1")), TOOLS)
    again = memory.with_calls(back)
    assert again.messages[1].tool_calls[0].raw == RAW
    assert RAW in render(again).text
    assert render(again).encode(TOKENIZER, memory.recall).ids[len(prompt.ids)] == 5


def test_a_call_that_was_changed_is_another_one() -> None:
    memory = replay()
    prompt = render(Conversation((user("go"),), TOOLS)).encode(TOKENIZER)
    two = (CALL, ToolCall("call_2", "f", "{}", raw=RAW))
    memory.remember(prompt, Message(Role.ASSISTANT, "", tool_calls=two), [5])
    changed = [
        (ToolCall("call_1", "f", '{"a": [2, 1]}'), ToolCall("call_2", "f", "{}")),
        (ToolCall("call_1", "g", '{"a": [1, 2]}'), ToolCall("call_2", "f", "{}")),
        (ToolCall("call_1", "f", '{"a": [1, 2]}'),),  # one of two
        (ToolCall("call_9", "f", '{"a": [1, 2]}'), ToolCall("call_2", "f", "{}")),
        (ToolCall("call_1", "f", "not JSON"), ToolCall("call_2", "f", "{}")),
    ]
    for calls in changed:
        back = Conversation((user("go"), Message(Role.ASSISTANT, "", tool_calls=calls)), TOOLS)
        assert all(call.raw is None for call in memory.with_calls(back).messages[1].tool_calls)
    whole = (ToolCall("call_1", "f", '{"a":[1,2]}'), ToolCall("call_2", "f", ""))
    back = Conversation((user("go"), Message(Role.ASSISTANT, "", tool_calls=whole)), TOOLS)
    assert memory.with_calls(back).messages[1].tool_calls[1].raw is None  # "" is not "{}"


def test_defects_and_cut_off_thoughts_are_not_repeated() -> None:
    memory = replay()
    prompt = render(Conversation((user("go"),), TOOLS)).encode(TOKENIZER)
    defect = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("call_1", "f", "{}"),))
    thought = Message(Role.ASSISTANT, "", reasoning="so")
    for message in (defect, thought):
        memory.remember(prompt, message, [5])
        back = Conversation((user("go"), message, user("x")), TOOLS, thinking=Thinking.HIGH)
        assert render(memory.with_calls(back)).encode(TOKENIZER, memory.recall).ids == render(back).ids(
            TOKENIZER
        )


def test_landmarks() -> None:
    system = Message(Role.SYSTEM, "Be brief.")
    for tools in ((), TOOLS):
        encoded = render(Conversation((system, user("a")), tools)).encode(TOKENIZER)
        other = render(Conversation((system, user("b")), tools)).encode(TOKENIZER)
        assert encoded.shared == other.shared > 0
        assert encoded.ids[: encoded.shared] == other.ids[: other.shared]
        assert TOKENIZER.decode(encoded.ids[encoded.shared :]) == "<｜User｜>a<｜Assistant｜></think>"
        assert TOKENIZER.decode(encoded.ids[encoded.stable :]) == "<｜Assistant｜></think>"
        assert encoded.speech == len(encoded.ids)
    forced = render(Conversation((system, user("a")), TOOLS), force_call=True).encode(TOKENIZER)
    assert TOKENIZER.decode(forced.ids[forced.speech :]) == "\n\n<｜DSML｜tool_calls>\n"


# ── the memory ────────────────────────────────────────────────────────────────────────────────────────────


def test_it_outlives_the_process(tmp_path: Path) -> None:
    file = tmp_path / "deeper" / "said.sqlite"
    one = LruStore(file)
    one.set("a", b"1")
    two = LruStore(file)  # another process
    assert (two.get("a"), two.get("b")) == (b"1", None)
    one.set("a", b"2")
    one.close()
    assert LruStore(file).get("a") == b"2"
    one.set("c", b"3")  # closed: only in memory
    assert (one.get("c"), LruStore(file).get("c")) == (b"3", None)


def test_it_is_bounded(tmp_path: Path) -> None:
    memory = LruStore(max_entries=3)
    for name in "abcd":
        memory.set(name, b"x")
        memory.get("a")
    assert [memory.get(name) for name in "abcd"] == [b"x", None, b"x", b"x"]
    file = tmp_path / "said.sqlite"
    memory = LruStore(file, max_entries=10)
    for number in range(600):
        memory.set(str(number), b"x")
    memory.close()
    with sqlite3.connect(file) as database:
        (count,) = database.execute("SELECT count(*) FROM remembered").fetchone()
    assert count <= 10 + 256


def test_it_is_bounded_in_bytes() -> None:
    memory = LruStore()
    for number in range(100):
        memory.set(str(number), bytes(1 << 20))
        memory.set("again", bytes(1 << 20))
    kept = [number for number in range(100) if memory.get(str(number)) is not None]
    assert kept == list(range(93, 100))


def test_what_is_not_ours_is_replaced_and_what_cannot_be_is_left(tmp_path: Path) -> None:
    file = tmp_path / "said.sqlite"
    file.write_bytes(b"not a database, but long enough to look like one" * 50)
    memory = LruStore(file)
    memory.set("a", b"1")
    assert LruStore(file).get("a") == b"1"
    blocked = tmp_path / "file"
    blocked.touch()
    without = LruStore(blocked / "said.sqlite")
    without.set("a", b"1")
    assert without.get("a") == b"1"


def test_tokens_that_are_none_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "said.sqlite"
    memory = replay(LruStore(file))
    prompt = render(Conversation((user("Hello"),))).encode(TOKENIZER)
    memory.remember(prompt, Message(Role.ASSISTANT, "hi"), [1])
    back = Conversation((user("Hello"), Message(Role.ASSISTANT, "hi"), user("x")))
    plain = render(back).ids(TOKENIZER)
    for value in (b"", b"123", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", "text", None):
        with sqlite3.connect(file) as database:
            database.execute("UPDATE remembered SET value = ?", (value,))
        found = render(back).encode(TOKENIZER, replay(LruStore(file)).recall).ids
        assert found == plain or value == b""  # nothing at all is a way to say "hi", if an odd one

"""`penstock chat` as a person uses it: through a terminal, and as a filter."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.chat.messages import Role, Thinking, parse_thinking
from penstock.chat.saved import conversation_from_json
from penstock.cli.line_editor import keep, recalled
from penstock.cli.terminal import printable
from penstock.errors import OptionError
from penstock.weights.synth import synth
from tests.cli.terminals import Terminal


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return path


@pytest.fixture
def terminal(model: Path, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal("chat", "-m", model, "--seed", 3, "--max-tokens", 12, state=tmp_path)
    yield terminal
    terminal.close()


def test_a_conversation(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("> ")
    terminal.send("/system Be brief.\r")
    terminal.expect("Be brief.\n")
    terminal.expect("> ")
    terminal.send("hello\r")
    terminal.expect("hello\n")
    assert terminal.expect("> ").strip()
    terminal.send("\x1b[200~two\nlines\x1b[201~\r")
    terminal.expect("(cut off")
    terminal.send("/think on\r")
    terminal.expect("think: low")
    terminal.send('"""a\r')
    terminal.expect(". ")
    terminal.send('b"""\r')
    terminal.expect("(no answer: thinking used up max_tokens 12; /set max_tokens, or /think off,")
    assert "\x1b[2m" in terminal.raw  # reasoning is dim
    terminal.send(f"/save {tmp_path}/talk\r")
    terminal.expect("saved: ")
    terminal.send("/nonsense\r")
    terminal.expect("there is no /nonsense")
    terminal.send("/clear\r")
    terminal.expect("(a new conversation)")
    terminal.send(f"/load {tmp_path}/talk\r")
    terminal.expect("7 messages loaded")
    terminal.send("/help\r")
    terminal.expect("Ctrl-C twice")
    terminal.send("/bye\r")
    assert terminal.status() == 0

    saved = conversation_from_json((tmp_path / "talk").read_text())
    said = [m.content for m in saved.messages if m.role is Role.USER]
    assert said == ["hello", "two\nlines", "a\nb"]
    history = tmp_path / "penstock" / "chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert [json.loads(line) for line in history.read_text().splitlines()][1:4] == [
        "hello",
        "two\nlines",
        "/think on",
    ]


def test_lines_that_arrive_together_are_one_message(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect("> ")
    terminal.send("one\rtwo\r")
    terminal.expect("(cut off")
    terminal.send(f"/save {tmp_path}/talk\r")
    terminal.expect("saved: ")
    # Before the prompt a Ctrl-D would go to the terminal's own line buffer, and be lost.
    terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.status() == 0
    saved = conversation_from_json((tmp_path / "talk").read_text())
    assert [m.content for m in saved.messages if m.role is Role.USER] == ["one\ntwo"]


def test_interrupts(model: Path, tmp_path: Path) -> None:
    terminal = Terminal("chat", "-m", model, "--seed", 3, "--max-tokens", 3000, state=tmp_path)
    try:
        terminal.expect("> ")
        terminal.send("hello\r")
        terminal.expect("hello\n")
        terminal.expect_anything()  # it reads or answers: Ctrl-C stops that
        terminal.send("\x03")
        terminal.expect("(stopped")
        terminal.expect("> ")
        terminal.interrupt("(Ctrl-C again or Ctrl-D to leave)")
        terminal.send("/think\r")
        terminal.expect("think: low")
        terminal.expect("> ")
        terminal.interrupt("(Ctrl-C again")
        terminal.expect("> ")
        terminal.leave()
    finally:
        terminal.close()


def chat(
    *arguments: object, said: str | bytes, state: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "chat", *map(str, arguments)],
        input=said if isinstance(said, bytes) else said.encode(),
        capture_output=True,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(state or "/nowhere")},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_as_a_filter(model: Path) -> None:
    """Answers on stdout, and nothing else there."""
    result = chat("-m", model, "--seed", 3, "-n", 5, said="hello\n/think maybe\nbye\n")
    assert result.returncode == 0, result.stderr
    assert "expected one of off, on, low, high, max" in result.stderr
    assert result.stderr.count("(cut off by max_tokens 5)") == 2
    assert result.stdout.count("\n") == 2
    assert "\x1b" not in result.stdout + result.stderr


def test_the_pocket_model_answers_and_remembers() -> None:
    told = "What is 17 + 25?\n/think on\nWhat is 17 + 25?\n"
    result = chat("--temperature", 0, said=told)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["42", "42"]
    thought = result.stderr.partition("think: low")[2]
    assert "carry" in thought or "ones" in thought  # shown, but no marker of it
    assert "think>" not in result.stdout + result.stderr


def test_settings(model: Path) -> None:
    said = [
        "/set",
        "/set temperature 0.5",
        "/set parameter top-k 7",
        "/set temperature default",
        "/set seed",
        "/set max_tokens 2",
        "/set stats on",
        "/set think high",
        "/set system Be brief.",
        "/set stats maybe",
        "/set top_p 2",
        "/set min_p much",
        "/set colour red",
        "hello",
    ]
    lines = chat("-m", model, "--temperature", 0.7, said="\n".join(said)).stderr.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("/set NAME VALUE"))
    assert {line.split()[0] for line in lines[:at]} >= {
        "temperature",
        "top_k",
        "max_tokens",
        "stats",
        "think",
        "system",
    }
    assert lines[at + 1 : at + 13] == [
        "temperature: 0.5",
        "top_k: 7",
        "temperature: 0.7",
        "seed: another one each time",
        "max_tokens: 2",
        "stats: on",
        "think: high",
        "system: 'Be brief.'",
        "stats is 'maybe', expected on or off",
        "top_p is 2.0, expected 0 to 1",
        "min_p is 'much', expected 0 to 1",
        "there is no setting 'colour'; /set lists them",
    ]
    rest = "\n".join(lines[at + 13 :])
    assert "first token after" in rest
    assert "max_tokens 2" in rest


def test_again_and_back(model: Path) -> None:
    said = "/regen\n/undo\nhello\n/regen\n/ctx\n/undo\n/ctx\n/clear\n"
    result = chat("-m", model, "-n", 4, said=said)
    assert result.stdout.count("\n") == 2
    notes = [line for line in result.stderr.splitlines() if "cut off" not in line]
    assert notes[:2] == ["nothing has been asked yet"] * 2
    assert "in 2 messages" in notes[2]
    assert notes[3] == "(taken back: hello)"
    assert notes[4].startswith("0 of ")
    assert notes[5] == "(a new conversation)"


def test_files_go_with_a_question(model: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The sky is red.\n")
    (tmp_path / "noise").write_bytes(b"\xff\xfa")
    said = [
        f"/read {tmp_path}/note.txt",
        "What colour?",
        f"/read {tmp_path}/note.txt And now?",
        f"/read {tmp_path}/noise",
        "/read /nowhere",
        "/read",
        f"/save {tmp_path}/talk",
    ]
    result = chat("-m", model, "-n", 3, said="\n".join(said))
    saved = conversation_from_json((tmp_path / "talk").read_text())
    block = "[file name]: note.txt\n[file content begin]\nThe sky is red.\n[file content end]\n\n"
    asked = [m.content for m in saved.messages if m.role is Role.USER]
    assert asked == [f"{block}What colour?", f"{block}And now?"]
    for expected in (
        "15 characters, which go with your next message",
        "noise: not UTF-8 text: byte 0xff at offset 0",
        "/nowhere: cannot be read: No such file or directory",
        "/read needs the name of a file",
    ):
        assert expected in result.stderr


def test_saved_conversations(model: Path, tmp_path: Path) -> None:
    said = "/sessions\n/save\nhello\n/save rain\n/save\n/sessions\n/load\n/load nothing\n"
    result = chat("-m", model, "-n", 3, said=said, state=tmp_path)
    folder = tmp_path / "penstock" / "chats"
    assert "(nothing is saved yet" in result.stderr
    assert "/save needs a name" in result.stderr
    assert result.stderr.count(f"saved: {folder}/rain.chat") == 2
    assert result.stderr.count("rain  ") == 2  # listed twice, the second time because /load wants a name
    assert "2 messages" in result.stderr
    assert "nothing.chat: cannot be read" in result.stderr
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "rain.chat")] == [0o700, 0o600]
    more = chat("-m", model, "-n", 3, "--load", "rain", said="/ctx\n", state=tmp_path)
    assert "2 messages loaded" in more.stderr
    assert "in 2 messages" in more.stderr
    missing = chat("-m", model, "--load", "snow", said="", state=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1


def test_messages_that_are_no_text(model: Path) -> None:
    result = chat("-m", model, "-n", 3, said=b"\xff\xfe\nhello\n")
    assert result.returncode == 0
    assert result.stdout.count("\n") == 1
    assert "not UTF-8 text" in result.stderr


def test_history_of_several_lines(terminal: Terminal, tmp_path: Path) -> None:
    """A message of several lines comes back as one, also in the next program."""
    terminal.expect("> ")
    terminal.send('"""one\r')
    terminal.expect(". ")
    terminal.send('two"""\r')
    terminal.expect("(cut off")
    terminal.expect("> ")
    terminal.send("\x1b[A\r")  # the arrow upwards
    terminal.expect("(cut off")
    terminal.send(f"/save {tmp_path}/talk\r")
    terminal.expect("saved: ")
    saved = conversation_from_json((tmp_path / "talk").read_text())
    assert [m.content for m in saved.messages if m.role is Role.USER] == ["one\ntwo"] * 2
    assert recalled(tmp_path / "penstock" / "chat_history")[0] == "one\ntwo"


def test_a_history_that_grows_too_long_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"{number}\n" for number in range(2000)))
    keep(path, "new")
    found = recalled(path)
    assert (len(found), found[0], found[-1]) == (1000, "1001", "new")
    assert len(path.read_text().splitlines()) == 1001


def test_efforts() -> None:
    assert [parse_thinking(word) for word in ("off", "on", "max")] == [
        Thinking.OFF,
        Thinking.LOW,
        Thinking.MAX,
    ]
    with pytest.raises(OptionError, match="think is 'hard', expected one of off, on, low, high, max"):
        parse_thinking("hard")


def test_the_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\tb\n\x9b\x7fé") == "a\ufffd[31m\tb\n\ufffd\ufffdé"

"""`penstock run`: where its text comes from, what it says besides the answer, and with which status it ends."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.given_text import MOST
from penstock.weights.synth import synth
from tests.cli.terminals import Terminal

SUM = "What is 17 + 25?"


def run(*arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", *map(str, arguments)],
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=stdin,
        capture_output=True,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def prompt_of(*arguments: object, stdin: bytes | None = None) -> int:
    """How many tokens the model is given to read."""
    result = run(*arguments, "-n", 1, "--json", stdin=stdin)
    return int(json.loads(result.stdout)["usage"]["prompt_tokens"])


# ── what is read ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_question_by_every_way(tmp_path: Path) -> None:
    (tmp_path / "q").write_text(SUM + "\n")
    greedy = ("--temperature", 0)
    ways = [
        run(SUM, *greedy),
        run(*greedy, stdin=SUM.encode() + b"\n"),
        run("-", *greedy, stdin=b"\xef\xbb\xbf" + SUM.encode() + b"\r\n"),
        run("--file", tmp_path / "q", *greedy),
        run("--file", "-", *greedy, stdin=SUM.encode()),
    ]
    assert [(way.returncode, way.stdout, way.stderr) for way in ways] == [(0, "42\n", "")] * 5


def test_texts_before_the_question(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The sky is red.\n")
    alone = prompt_of("What colour?")
    assert (
        prompt_of("The sky is red.\n\nWhat colour?")
        == prompt_of("What colour?", stdin=b"The sky is red.\n")
        > alone
    )
    block = "[file name]: a.txt\n[file content begin]\nThe sky is red.\n[file content end]"
    file = ("--file", tmp_path / "a.txt")
    assert prompt_of(f"{block}\n\nWhat colour?") == prompt_of("What colour?", *file)
    assert prompt_of(f"{block}\n\n{block}\n\nBlue.\n\nWhat colour?") == prompt_of(
        "What colour?", *file, *file, stdin=b"Blue."
    )
    assert prompt_of("The sky is red.\nWhat", "--raw") == prompt_of("What", *file, "--raw")


def test_a_pipe_that_stays_open_is_waited_for_and_said() -> None:
    command = [sys.executable, "-m", "penstock", "run", SUM, "--temperature", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert "waiting for standard input (< /dev/null says" in process.stderr.readline()
        process.stdin.close()
        assert process.stdout.read() == "42\n"


def test_a_socket_counts_if_there_is_nothing_else() -> None:
    for prompt, said in (([SUM], b""), ([], SUM.encode())):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(said)
            if not prompt:
                ours.shutdown(socket.SHUT_WR)
            command = [sys.executable, "-m", "penstock", "run", *prompt, "--temperature", "0"]
            done = subprocess.run(command, stdin=theirs.fileno(), capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("42\n", "")


def test_an_empty_pipe_adds_nothing() -> None:
    assert prompt_of("hello", stdin=b"") == prompt_of("hello")


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ([""], None, "the prompt is empty: expected something to say to the model"),
        ([" "], b"text", "the prompt is empty: expected something to say to the model"),
        ([], None, "there is no prompt: give it as an argument, by --file, or on standard input"),
        ([], b"", "there is no prompt: give it as an argument, by --file, or on standard input"),
        (["-"], b" \n", "the prompt is empty: there is no text in what was given"),
        (["--file", "EMPTY"], None, "the prompt is empty: there is no text in what was given"),
        (["hi"], b"\x7fELF\xd0", "standard input: not UTF-8 text: byte 0xd0 at offset 4"),
        (["hi"], b"a\0b", "standard input: not text: a NUL byte at offset 1"),
        (["hi"], b"\xff\xfeh\0i\0", "standard input: looks like UTF-16, expected UTF-8"),
        (["hi", "--file", "LARGE"], None, f"more than {MOST >> 20} MiB, which no context holds"),
        (["hi", "--file", "/nowhere"], None, "/nowhere: cannot be read: No such file or directory"),
        (["hi", "--file", "/"], None, "/: cannot be read: Is a directory"),
        (["caf\udce9"], None, "the prompt: not UTF-8 text: byte 0xe9 after 'caf'"),
        (["hi", "-n", "0"], None, "--max-tokens is 0, expected a whole number from 1"),
        (["hi", "--think=hard"], None, "think is 'hard', expected one of off, on, low, high, max"),
        (["hi", "--raw", "--think"], None, "--system and --think belong to the chat format"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    arguments: list[str], stdin: bytes | None, message: str, tmp_path: Path
) -> None:
    with (tmp_path / "LARGE").open("wb") as file:
        file.truncate(MOST + 1)
    (tmp_path / "EMPTY").touch()
    result = run(
        *(tmp_path / word if word in ("LARGE", "EMPTY") else word for word in arguments), stdin=stdin
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert message in result.stderr
    assert result.stderr.startswith("penstock: ")
    assert result.stderr.count("\n") == 1


def test_think_stands_alone_or_has_a_word() -> None:
    for arguments in (["--think", SUM], [SUM, "--think"], ["--think", "low", SUM], [SUM, "--think=on"]):
        result = run(*arguments, "--temperature", 0)
        assert result.stdout == "42\n", arguments
        assert "ones" in result.stderr
    assert run("--think", "off", SUM, "--temperature", 0).stderr == ""


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--think", "-n", 5], 3, "no answer: thinking used up --max-tokens 5; a larger -n, or --think off,"),
        (["-n", 1], 0, "cut off by --max-tokens 1"),
        (["--ignore-eos", "--context", 30], 3, "cut off: the answer has filled the context of 30 tokens"),
        (
            ["--think", "--context", 30],
            3,
            "no answer: thinking has filled the context of 30 tokens; --context",
        ),
        (["--stop", "2"], 0, "ended at the stop text '2'"),
        (["--raw", "--stop", "0", "--stop", "a", "--ignore-eos"], 0, "ended at the stop text '"),
    ],
)
def test_an_answer_that_was_cut_says_so(arguments: list[object], status: int, words: str) -> None:
    result = run(SUM, *arguments, "--temperature", 0)
    assert result.returncode == status
    assert result.stderr.splitlines()[-1].startswith(f"penstock: {words}")
    as_json = run(SUM, *arguments, "--temperature", 0, "--json")
    assert as_json.returncode == status
    assert json.loads(as_json.stdout)["finish_reason"] in ("length", "stop")


def test_stats(model: Path) -> None:
    result = run("hello", "-m", model, "-n", 3, "--stats", "--streaming", "direct", "--temperature", 0)
    answer, details, cut = result.stderr.splitlines()
    for expected in (
        "first token after",
        "prefill ",
        "tokens at",
        "decode 2 tokens at",
        "% in memory",
        "GB read",
    ):
        assert expected in answer
    assert "experts asked for" in details
    assert "cut off" in cut


def test_stats_of_weights_that_the_system_keeps() -> None:
    result = run("hello", "--stats", "--streaming", "mmap")
    assert "first token after" in result.stderr
    assert "mmap: the system keeps the weights in memory" in result.stderr


# ── in a terminal ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return path


@pytest.fixture
def terminal(model: Path) -> Iterator[Terminal]:
    terminal = Terminal("run", "-m", model, "word " * 400, "-n", 4, "--seed", 3)
    yield terminal
    terminal.close()


def test_progress_is_gone_when_the_answer_begins(terminal: Terminal) -> None:
    terminal.expect("cut off by --max-tokens 4")
    assert terminal.status() == 0
    line = terminal.raw.index("reading 0 of ")
    erased = terminal.raw.rindex("\r\x1b[K")
    answer = terminal.raw[erased + 4 :]
    assert line < erased
    assert "reading" not in answer
    assert answer.strip()


def test_ctrl_c_in_the_middle_of_an_answer(model: Path) -> None:
    terminal = Terminal("run", "-m", model, "hello", "--ignore-eos", "--seed", 3)
    try:
        terminal.expect("reading ")
        terminal.send("\x03")
        assert terminal.status() == 130
        assert "Traceback" not in terminal.raw
    finally:
        terminal.close()


def test_whoever_read_the_output_has_enough(model: Path) -> None:
    command = [sys.executable, "-m", "penstock", "run", "-m", str(model), "hello", "--ignore-eos"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0

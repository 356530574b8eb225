"""What a person gives a command to read: an argument, files, standard input."""

import os
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from penstock.errors import OptionError

STDIN: Final = "-"
MOST: Final = 64 << 20  # bytes; more than any context holds
PATIENCE: Final = 1.0  # seconds without any input after which a person is told what is waited for


def given_text(prompt: str | None, files: Sequence[str], raw: bool = False) -> str:
    """The whole of it: files, then standard input, then the prompt.  Files are marked as such, unless there is one
    and nothing else, or `raw` says that all of it is one text."""
    asks_stdin = prompt == STDIN or STDIN in files
    if prompt == STDIN:
        prompt = None
    if prompt is not None:
        check_text(prompt, "the prompt")
        if not prompt.strip() and not raw:
            raise OptionError("the prompt is empty: expected something to say to the model")
    named = [name for name in files if name != STDIN]
    texts = [read_file(name) for name in named]
    piped = read_stdin() if asks_stdin or _is_piped(prompt is None and not files) else ""
    others = [text for text in (piped, prompt) if text]
    if raw:
        whole = "\n".join([*texts, *others])
    else:
        alone = len(texts) == 1 and not others
        blocks = texts if alone else [file_block(name, text) for name, text in zip(named, texts, strict=True)]
        whole = "\n\n".join([*blocks, *others])
    if not whole.strip() and not (raw and whole):
        if asks_stdin or files:
            raise OptionError("the prompt is empty: there is no text in what was given")
        raise OptionError("there is no prompt: give it as an argument, by --file, or on standard input")
    return whole


def file_block(name: str, text: str) -> str:
    """A file as DeepSeek's models are told of one."""
    return f"[file name]: {Path(name).name}\n[file content begin]\n{text}\n[file content end]"


def read_file(name: str) -> str:
    if not name:
        raise OptionError("--file is empty, expected the path of a text")
    try:
        with Path(name).expanduser().open("rb") as file:
            return _decoded(file, name)
    except OSError as error:
        raise OptionError(f"{name}: cannot be read: {error.strerror}") from None


def read_stdin() -> str:
    if sys.stdin is None:  # closed
        return ""
    stream = sys.stdin.buffer
    if not select.select([stream], [], [], PATIENCE)[0]:
        end = "Ctrl-D ends it" if stream.isatty() else "< /dev/null says that there is none"
        print(f"penstock: waiting for standard input ({end})", file=sys.stderr)
    return _decoded(stream, "standard input")


def _is_piped(only: bool) -> bool:
    """Whether standard input is a pipe or a file: what somebody has put there, not a terminal or nothing.  Programs
    that start others leave sockets open, so one counts only if there is no other text."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or (only and stat.S_ISSOCK(mode))


def _decoded(file: BinaryIO, name: str) -> str:
    data = file.read(MOST + 1)
    if len(data) > MOST:
        raise OptionError(f"{name}: more than {MOST >> 20} MiB, which no context holds")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise OptionError(
            f"{name}: looks like UTF-16, expected UTF-8 (iconv -f utf-16 -t utf-8 makes it that)"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise OptionError(f"{name}: not UTF-8 text: byte 0x{byte:02x} at offset {error.start:,}") from None
    if "\0" in text:
        raise OptionError(f"{name}: not text: a NUL byte at offset {data.index(0):,}")
    return text.replace("\r\n", "\n").removesuffix("\n")


def check_text(text: str, what: str) -> None:
    """Python reads bytes that are no text as halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise OptionError(
            f"{what}: not UTF-8 text: byte 0x{byte:02x} after {text[: error.start]!r}"
        ) from None

"""`penstock chat`: a conversation in the terminal."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from penstock.chat.chat_session import ChatSession
from penstock.chat.deepseek_v4.render import Encoding
from penstock.chat.events import Event
from penstock.chat.messages import Conversation, Role, Thinking
from penstock.cli import options
from penstock.cli.opening import open_engine, stats_line
from penstock.cli.terminal import (
    Display,
    keep_history,
    more_typed,
    printable,
    read_message,
    start_editing,
)
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError, PenstockError

HELP = """\
/think on|off|low|high|max   reason before answering
/system [TEXT]               show or replace the system text; /system - removes it
/reset                       begin anew, with the same system text
/save FILE, /load FILE       this conversation, with what the model remembers of it
/quit                        leave (or Ctrl-D, or Ctrl-C twice)
A line that ends in \\ goes on in the next; \"\"\" opens and closes a longer text.  Ctrl-C stops an answer."""


@options.with_flags
def chat_command(
    sampling: Sampling,
    chosen: EngineOptions,
    model: options.Model = None,
    system: Annotated[str, typer.Option(help="System text placed before the conversation.")] = "",
    think: Annotated[str, typer.Option(help="Reason before answering: off, on, low, high or max.")] = "off",
    encoding: Annotated[
        Encoding, typer.Option(help="Which release's prompt format; they differ in what efforts mean.")
    ] = Encoding.APRIL,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens in an answer.")] = 4096,
    stats: options.Stats = False,
) -> None:
    """Talk with a model.

    Example: penstock chat -m model.gguf --think on
    """
    conversation = Conversation((), thinking=parse_thinking(think), encoding=encoding)
    engine = open_engine(model, chosen)
    session = ChatSession(engine, conversation)
    session.set_system(system)
    with engine:
        Repl(session, sampling, max_tokens, Console(highlight=False, soft_wrap=True), stats).run()


def parse_thinking(word: str) -> Thinking:
    """ "on" is the effort that adds nothing to the prompt in any release."""
    try:
        return Thinking.LOW if word == "on" else Thinking(word)
    except ValueError:
        raise OptionError(f"think is {word!r}, expected off, on, low, high or max") from None


class Repl:
    """Reads, answers, and repeats until the person leaves."""

    def __init__(
        self, session: ChatSession, sampling: Sampling, max_tokens: int, console: Console, stats: bool = False
    ):
        self.session = session
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.console = console
        self.stats = stats
        self._commands = {
            "/help": self._help,
            "/think": self._think,
            "/system": self._system,
            "/reset": self._reset,
            "/save": self._save,
            "/load": self._load,
        }

    def run(self) -> None:
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            start_editing()
            self.note(f"{self.session.engine.checkpoint.path.name}; /help for help, Ctrl-D to leave")
        try:
            for message in self._messages("> " if is_terminal else ""):
                self.handle(message)
        except KeyboardInterrupt:  # the second one during an answer
            self.console.print()
        finally:
            if is_terminal:
                keep_history()

    def _messages(self, prompt: str) -> Iterator[str]:
        """What the person says, until they leave."""
        interrupts = 0
        while interrupts < 2:
            try:
                message = read_message(input, more_typed, prompt)
                if message.strip() in ("/quit", "/exit"):
                    return
            except EOFError:
                self.console.print()
                return
            except KeyboardInterrupt:
                interrupts += 1
                self.note("\n(Ctrl-C again or Ctrl-D to leave)" if interrupts < 2 else "")
            else:
                interrupts = 0
                yield message

    def handle(self, message: str) -> None:
        """One message or command.  What goes wrong is said, and the conversation goes on."""
        try:
            word, _, rest = message.partition(" ")
            if word in self._commands:
                self._commands[word](rest.strip())
            elif word.startswith("/") and word[1:].isalpha() and "\n" not in message:
                raise OptionError(f"there is no {word}; /help lists the commands")
            elif message.strip():
                self._answer(message)
        except PenstockError as error:
            self.note(str(error), "red")

    def note(self, text: str, style: str = "dim") -> None:
        """Something that the program says, not the model."""
        self.console.print(Text(text, style))

    # ── answering ─────────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, message: str) -> None:
        before, begin = self.session.engine.stats(), time.perf_counter()
        with _interruptible() as interrupt:
            events = self.session.say(
                message, self.max_tokens, self.sampling, stopped=lambda: bool(interrupt)
            )
            self._show(events)
        if interrupt:
            begun = self.session.finish_reason is not None
            self.note("(stopped)" if begun else "(stopped before the answer began; the message is forgotten)")
        elif self.session.finish_reason == "length":
            self.note("(cut off: --max-tokens or the context is used up)")
        if self.stats:
            self.note(stats_line(before, self.session.engine.stats(), time.perf_counter() - begin))

    def _show(self, events: Iterator[Event]) -> None:
        with self.console.status("reading …"):  # shown only on a terminal
            first = next(events, None)
        display = Display(self.console)
        if first is not None:
            display.show(chain([first], events))
        display.finish()

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────

    def _help(self, _: str) -> None:
        self.note(HELP, "")

    def _think(self, word: str) -> None:
        self.session.set_thinking(parse_thinking(word or "on"))
        self.note(f"thinking: {self.session.conversation.thinking}")

    def _system(self, text: str) -> None:
        if text:
            self.session.set_system("" if text == "-" else text)
        messages = self.session.conversation.messages
        shown = "\n\n".join(message.content for message in messages if message.role is Role.SYSTEM)
        self.note(printable(shown) or "(no system text)")

    def _reset(self, _: str) -> None:
        self.session.reset()
        self.note("(a new conversation)")

    def _save(self, name: str) -> None:
        self.session.save(_path("/save", name))
        self.note(f"saved: {name}")

    def _load(self, name: str) -> None:
        trouble = self.session.load(_path("/load", name))
        self.note(f"{len(self.session.conversation.messages)} messages loaded")
        if trouble:
            self.note(f"they will be read again: {trouble}")


def _path(command: str, name: str) -> Path:
    if not name:
        raise OptionError(f"{command} needs the name of a file")
    return Path(name).expanduser()


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """While an answer is made, the first Ctrl-C is noted in the list and the second raises KeyboardInterrupt."""
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)

"""The loop of `penstock chat`: reads, answers, and repeats until the person leaves."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import Final

from penstock.chat.chat_session import ChatSession, Listener, Stopped
from penstock.chat.events import Event
from penstock.chat.messages import parse_thinking
from penstock.cli.answer_stats import AnswerStats
from penstock.cli.chat_files import chat_path, found_path, saved_chats
from penstock.cli.chat_settings import ChatSettings, system_text
from penstock.cli.ending import IN_CHAT, ending
from penstock.cli.given_text import check_text, file_block, read_file
from penstock.cli.line_editor import add_to_history, more_typed, read_message, start_editing
from penstock.cli.terminal import Display, PrefillLine, outputs
from penstock.engine.progress import PrefillProgress
from penstock.engine.steps import Step
from penstock.errors import OptionError, PenstockError

HELP: Final = """\
/set [NAME [VALUE]]    show or change settings: temperature, max_tokens, stats, …
/think [WORD]          reason before answering: off, on, low, high or max
/system [TEXT]         show or replace the system text; - removes it
/read FILE [QUESTION]  a text that goes with the question, or with the next message
/regen                 answer the last question once more
/undo                  take the last question and its answer back
/clear                 begin anew, with the same system text
/ctx                   how much of the context is used
/save NAME             keep this conversation, with what the model remembers of it; a path works too
/load NAME             go on with a saved one
/sessions              list what is saved
/bye                   leave (or Ctrl-D, or Ctrl-C twice)
A line that ends in \\ goes on in the next; \"\"\" opens and closes a longer text.  Arrow keys bring earlier messages
back.  Ctrl-C stops an answer and keeps it."""

INTERRUPTED: Final = 130


class Repl:
    def __init__(self, session: ChatSession, settings: ChatSettings):
        self.session, self.settings = session, settings
        self.answer, self.notes = outputs()
        self._typed = sys.stdin.isatty()  # by a person
        self._read: list[str] = []  # files that go with the next message
        self._name = ""  # of the conversation, once it is saved or loaded
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self.notes.note(HELP, ""),
            "/?": lambda _: self.notes.note(HELP, ""),
            "/set": lambda text: self.notes.note(self.settings.set(text), ""),
            "/think": self._think,
            "/system": self._system,
            "/read": self._read_file,
            "/regen": self._regenerate,
            "/undo": self._undo,
            "/clear": self._clear,
            "/reset": self._clear,
            "/ctx": self._context,
            "/save": self._save,
            "/load": self.load,
            "/sessions": self._sessions,
        }
        self._leaving = ("/bye", "/quit", "/exit")

    def run(self) -> int:
        """Until the person leaves; the exit status."""
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # what is no text is a mistake in one message
        if self._typed:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # any number of times
            start_editing([*self._commands, *self._leaving])
            self.notes.note(f"{self.session.engine.checkpoint.path.name}; /help for help, Ctrl-D to leave")
        for message in self._messages("> " if self._typed else ""):
            if message is None:
                return INTERRUPTED
            self.handle(message)
        return 0

    def _messages(self, prompt: str) -> Iterator[str | None]:
        """What the person says, until they leave; None if it is by Ctrl-C."""
        interrupts = 0
        while True:
            try:
                message = read_message(input, more_typed, prompt)
            except EOFError:
                if self._typed:
                    self.notes.write("\n")
                return
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts == 2 or not self._typed:
                    self.notes.write("\n")
                    yield None
                self.notes.note("\n(Ctrl-C again or Ctrl-D to leave)")
                continue
            if message.strip() in self._leaving:
                return
            interrupts = 0
            if self._typed:
                add_to_history(message)
            yield message

    def handle(self, message: str) -> None:
        """One message or command.  What goes wrong is said, and the conversation goes on."""
        try:
            check_text(message, "the message")
            word, _, rest = message.partition(" ")
            if word in self._commands:
                self._commands[word](rest.strip())
            elif word.startswith("/") and word[1:].isalpha() and "\n" not in message:
                raise OptionError(f"there is no {word}; /help lists the commands")
            elif message.strip():
                self._ask(message)
        except PenstockError as error:
            self.notes.note(str(error), "red")

    # ── answering ─────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, message: str) -> None:
        text = "\n\n".join([*self._read, message])
        limit, sampling = self.settings.max_tokens, self.settings.sampling
        if self._answer(lambda listener: self.session.say(text, limit, sampling, listener)):
            self._read.clear()

    def _regenerate(self, _: str) -> None:
        limit, sampling = self.settings.max_tokens, self.settings.sampling
        self._answer(lambda listener: self.session.say_again(limit, sampling, listener))

    def _answer(self, say: Callable[[Listener], Iterator[Event]]) -> bool:
        """Whether an answer was begun.  At a terminal Ctrl-C stops it, and a second one ends the program."""
        engine, display = self.session.engine, Display(self.answer, self.notes)
        with _noted_interrupts(self._typed) as interrupts:
            waiting = _Waiting(PrefillLine(self.notes), AnswerStats(engine), interrupts)
            try:
                for event in say(waiting):
                    display.show([event])
            finally:
                waiting.line.erase()
                display.finish()
        timing = waiting.timing
        timing.read = self.session.fed_tokens
        if timing.tokens:
            timing.show(self.notes, self.settings.stats)
        if interrupts:
            said = "(stopped)" if timing.tokens else "(stopped before the answer began; nothing was said)"
            self.notes.note(said)
        elif self.session.reply is not None:
            turn = self.session.reply.turn
            end = ending(turn, timing.tokens, self.settings.max_tokens, engine.context, IN_CHAT)
            if end is not None:
                self.notes.note(f"({end.words})")
        return bool(timing.tokens)

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────

    def _think(self, word: str) -> None:
        self.session.set_thinking(parse_thinking(word or "on"))
        self.notes.note(f"think: {self.session.conversation.thinking}")

    def _system(self, text: str) -> None:
        if text:
            self.settings.set(f"system {text}")
        self.notes.note(system_text(self.session) or "(no system text)")

    def _read_file(self, text: str) -> None:
        name, _, question = text.partition(" ")
        if not name:
            raise OptionError("/read needs the name of a file")
        content = read_file(name)
        self._read.append(file_block(name, content))
        if question.strip():
            self._ask(question.strip())
        else:
            self.notes.note(f"{name}: {len(content):,} characters, which go with your next message")

    def _undo(self, _: str) -> None:
        question = self.session.undo()
        first = question.splitlines()[0] if question.strip() else ""
        self.notes.note(f"(taken back: {first[:60]}{'…' if len(question) > 60 or first != question else ''})")

    def _clear(self, _: str) -> None:
        self.session.reset()
        self._read.clear()
        self.notes.note("(a new conversation)")

    def _context(self, _: str) -> None:
        used, context = self.session.used_tokens(), self.session.engine.context
        said = len(self.session.conversation.messages)
        self.notes.note(
            f"{used:,} of {context:,} tokens ({used / context:.1%}) in {said} message{'s' * (said != 1)}"
        )

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────

    def _save(self, name: str) -> None:
        if not name and not self._name:
            raise OptionError("/save needs a name, or the path of a file")
        path = chat_path(name or self._name)
        self.session.save(path)
        self._name = name or self._name
        self.notes.note(f"saved: {path}")

    def load(self, name: str) -> None:
        if not name:
            self._sessions("")
            raise OptionError("/load needs one of these names, or the path of a file")
        trouble = self.session.load(found_path(name))
        self._name = name
        self._read.clear()
        self.notes.note(f"{len(self.session.conversation.messages)} messages loaded")
        if trouble:
            self.notes.note(f"they will be read again: {trouble}")

    def _sessions(self, _: str) -> None:
        lines = saved_chats()
        self.notes.note("\n".join(lines) if lines else "(nothing is saved yet; /save NAME does that)")


class _Waiting(Listener):
    """A person in front of a terminal."""

    def __init__(self, line: PrefillLine, timing: AnswerStats, interrupts: list[int]):
        self.line, self.timing, self._interrupts = line, timing, interrupts

    def prefill(self, progress: PrefillProgress) -> None:
        if self._interrupts:
            raise Stopped
        self.line(progress)

    def token(self, _: Step) -> None:
        self.line.erase()
        self.timing.token()

    def stopped(self) -> bool:
        return bool(self._interrupts)


@contextmanager
def _noted_interrupts(typed: bool) -> Iterator[list[int]]:
    """While an answer is made, the first Ctrl-C is noted in the list and the second raises KeyboardInterrupt.  Nobody
    goes on talking to a filter: there the first one does."""
    noted: list[int] = []
    if not typed:
        yield noted
        return

    def note(number: int, _: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)

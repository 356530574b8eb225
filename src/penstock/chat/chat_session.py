"""A conversation on one engine, turn after turn: the messages, and the session that has read them.

Each turn renders the whole conversation and feeds only what the session has not read yet.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.chat.driver import ChatDriver, Reply
from penstock.chat.events import Event
from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.chat.saved import conversation_from_json, conversation_to_json
from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import common_length
from penstock.engine.progress import PrefillProgress, PrefillWatch
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.steps import Step
from penstock.errors import ContextLengthError, OptionError, SnapshotError


class Stopped(Exception):
    """Nobody wants to wait any more."""


class Listener:
    """Who waits for an answer: hears how far the prompt is read, and of every token."""

    def prefill(self, progress: PrefillProgress) -> None:
        """Called between layers.  May raise `Stopped`."""

    def token(self, _: Step) -> None:
        """Called before the token's events come."""

    def stopped(self) -> bool:
        """Asked between tokens: whether the answer ends here."""
        return False


class ChatSession:
    """One conversation.  Of its last turn, `prompt_tokens` says how long the prompt was, `fed_tokens` how much of
    that was new, and `reply` what came of it.

    >>> from penstock.chat.chat_session import ChatSession
    >>> chat = ChatSession(engine)
    >>> for event in chat.say("What is 17 + 25?", 20, penstock.Sampling(temperature=0)):
    ...     print(event)
    TextDelta(text='4')
    TextDelta(text='2')
    Done(finish_reason='stop', stop_string=None)
    """

    def __init__(self, engine: Engine, conversation: Conversation = Conversation(())):
        self.engine, self.driver = engine, ChatDriver(engine)
        self.conversation = conversation
        self.prompt_tokens = self.fed_tokens = 0
        self.reply: Reply | None = None
        # Sessions that the next turn may start from: where the last one ended, and, since a prompt without tools
        # drops earlier reasoning, where the last reasoning began.
        self._sessions = [engine.session()]

    def set_system(self, text: str) -> None:
        """Replaces the system text; empty removes it."""
        rest = tuple(m for m in self.conversation.messages if m.role is not Role.SYSTEM)
        first = (Message(Role.SYSTEM, text),) if text else ()
        self.conversation = replace(self.conversation, messages=(*first, *rest))

    def set_thinking(self, thinking: Thinking) -> None:
        """Whether, and how hard, the model reasons before it answers."""
        self.conversation = replace(self.conversation, thinking=thinking)

    def reset(self) -> None:
        """Forgets everything but the system text."""
        kept = tuple(m for m in self.conversation.messages if m.role is Role.SYSTEM)
        self.conversation = replace(self.conversation, messages=kept)

    def used_tokens(self) -> int:
        """What the next prompt has of the context, before anything new is said."""
        if not self.conversation.messages:
            return 0
        asked = (*self.conversation.messages, Message(Role.USER, ""))
        return len(self.driver.reply(replace(self.conversation, messages=asked)).prompt.ids)

    # ── one turn ──────────────────────────────────────────────────────────────────────────────────────────

    def say(
        self,
        text: str,
        max_tokens: int | None,
        sampling: Sampling | None = None,
        listener: Listener | None = None,
    ) -> Iterator[Event]:
        """Answers `text`.  An answer that was begun becomes part of the conversation, also if it is broken off; if
        none was, the conversation is as before."""
        asked = (*self.conversation.messages, Message(Role.USER, text))
        return self._answer(asked, max_tokens, sampling, listener or Listener())

    def say_again(
        self, max_tokens: int | None, sampling: Sampling | None = None, listener: Listener | None = None
    ) -> Iterator[Event]:
        """Answers the last question once more; the new answer takes the place of the old one."""
        asked = self.conversation.messages[: self._last_question() + 1]
        return self._answer(asked, max_tokens, sampling, listener or Listener())

    def undo(self) -> str:
        """Takes the last question and its answer back; returns the question."""
        at = self._last_question()
        question = self.conversation.messages[at].content
        self.conversation = replace(self.conversation, messages=self.conversation.messages[:at])
        return question

    def _last_question(self) -> int:
        messages = self.conversation.messages
        for at in reversed(range(len(messages))):
            if messages[at].role is Role.USER:
                return at
        raise OptionError("nothing has been asked yet")

    def _answer(
        self,
        messages: tuple[Message, ...],
        max_tokens: int | None,
        sampling: Sampling | None,
        listener: Listener,
    ) -> Iterator[Event]:
        asked = replace(self.conversation, messages=messages)
        self.reply = reply = self.driver.reply(asked, sampling)
        ids = reply.prompt.ids
        if len(ids) >= self.engine.context:
            raise ContextLengthError(
                f"the conversation has {len(ids):,} tokens, which leaves no room for an answer in the context of "
                f"{self.engine.context:,}; /clear begins a new one"
            )
        rest: list[Event] = []
        try:
            session = self._read(ids, reply.thinking, listener.prefill)
            steps = self.engine.generate(
                ids[session.position :], max_tokens, reply.sampling, session, listener.prefill
            )
            for step in steps:
                listener.token(step)
                yield from reply.push(step).events
                if reply.finished or listener.stopped():
                    break
        except Stopped:
            return
        finally:
            if reply.tokens:
                rest = reply.finish()
                # Reasoning that was broken off has no end to repeat; it is rendered from text, without it.
                whole = not reply.thinking or bool(reply.turn.content)
                answer = reply.turn.message(reply.tokens if whole else None)
                self.conversation = replace(asked, messages=(*asked.messages, answer))
        yield from rest

    def _read(
        self, ids: Sequence[int], keeps_place: bool, tell: Callable[[PrefillProgress], None]
    ) -> Session:
        """A session that has read some of `ids`, and if its place is to be kept all but the last."""
        session = self._best_session(ids[:-1])
        self.prompt_tokens, self.fed_tokens = len(ids), len(ids) - session.position
        self._sessions = [session]
        if keeps_place:
            rest = ids[session.position : -1]
            if rest:
                watch = PrefillWatch(len(ids), session.position, tell)
                session.feed(rest, logits="none", progress=watch)
            self._sessions.append(session.fork())
        return session

    def _best_session(self, ids: Sequence[int]) -> Session:
        """The session that shares the longest prefix with `ids`, rewound to its end; else a new one."""
        best, longest = None, 0
        for session in self._sessions:
            common = common_length(session.tokens, ids)
            if common > longest and session.position - common <= session.max_rewind:
                best, longest = session, common
        if best is None:
            return self.engine.session()
        best.rewind(best.position - longest)
        return best

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: Path) -> None:
        """Writes the conversation to `path` and what the session remembers of it to `path` + ".session"."""
        try:
            _write(path, conversation_to_json(self.conversation))
        except OSError as error:
            raise SnapshotError(f"{path}: cannot be written: {error.strerror or error}") from error
        if self._sessions[0].position:
            self._sessions[0].save(session_path(path))

    def load(self, path: Path) -> str | None:
        """The reverse.  The session only saves time: if it cannot be used, the reason is returned and the
        conversation is read again with the next turn."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SnapshotError(f"{path}: cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError:
            raise SnapshotError(f"{path}: not a saved conversation: it is not UTF-8 text") from None
        self.conversation = conversation_from_json(text, str(path))
        self._sessions = [self.engine.session()]
        try:
            self._sessions = [self.engine.load_session(session_path(path))]
        except SnapshotError as error:
            return str(error)
        return None


def _write(path: Path, text: str) -> None:
    """All of it or nothing, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def session_path(path: Path) -> Path:
    """Where the session of a saved conversation is."""
    return path.with_name(path.name + ".session")

"""A conversation on one engine, turn after turn: the messages, and the session that has read them.

Each turn renders the whole conversation and feeds only what the session has not read yet.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.chat.driver import ChatDriver
from penstock.chat.events import Event
from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.chat.saved import conversation_from_json, conversation_to_json
from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import common_length
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.errors import ContextLengthError, SnapshotError

_STRIDE = 512  # prompt tokens read between two looks at whether the person wants to stop


class ChatSession:
    """One conversation.  `prompt_tokens` and `fed_tokens`: of the last turn, in all and newly read.

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
        self.finish_reason: str | None = None
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

    # ── one turn ──────────────────────────────────────────────────────────────────────────────────────────

    def say(
        self,
        text: str,
        max_tokens: int,
        sampling: Sampling | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Answers `text`.  `stopped` is asked between tokens.  An answer that was begun becomes part of the
        conversation, also if it is broken off; if none was, the conversation is as before."""
        asked = replace(self.conversation, messages=(*self.conversation.messages, Message(Role.USER, text)))
        reply = self.driver.reply(asked, sampling)
        ids = reply.prompt.ids
        if len(ids) >= self.engine.context:
            raise ContextLengthError(
                f"the conversation has {len(ids):,} tokens, which leaves no room for an answer in the context of "
                f"{self.engine.context:,}; /reset begins a new one"
            )
        self.finish_reason = None
        session = self._read(ids, keeps_place=reply.thinking, stopped=stopped)
        if session is None:
            return
        try:
            for step in self.engine.generate(ids[session.position :], max_tokens, reply.sampling, session):
                yield from reply.push(step).events
                if reply.finished or stopped():
                    break
        finally:
            rest = reply.finish()
            self.finish_reason = reply.turn.finish_reason
            if reply.tokens:
                # Reasoning that was broken off has no end to repeat; it is rendered from text, without it.
                whole = not reply.thinking or bool(reply.turn.content)
                answer = reply.turn.message(reply.tokens if whole else None)
                self.conversation = replace(asked, messages=(*asked.messages, answer))
        yield from rest

    def _read(self, ids: Sequence[int], keeps_place: bool, stopped: Callable[[], bool]) -> Session | None:
        """A session that has read most of `ids`, and if its place is to be kept all but the last; None if stopped on
        the way."""
        session = self._best_session(ids[:-1])
        self.prompt_tokens, self.fed_tokens = len(ids), len(ids) - session.position
        self._sessions = [session]
        end = len(ids) - (1 if keeps_place else min(_STRIDE, len(ids) - session.position))
        while session.position < end:
            if stopped():
                return None
            session.feed(ids[session.position : end][:_STRIDE], logits="none")
        if keeps_place:
            self._sessions.append(session.fork())
        return None if stopped() else session

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
            path.write_text(conversation_to_json(self.conversation), encoding="utf-8")
        except OSError as error:
            raise SnapshotError(f"{path}: cannot be written: {error.strerror or error}") from error
        if self._sessions[0].position:
            self._sessions[0].save(session_path(path))

    def load(self, path: Path) -> str | None:
        """The reverse.  The session only saves time: if it cannot be used, the reason is returned and the
        conversation is read again with the next turn."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotError(f"{path}: cannot be read: {error}") from error
        self.conversation = conversation_from_json(text, str(path))
        self._sessions = [self.engine.session()]
        try:
            self._sessions = [self.engine.load_session(session_path(path))]
        except SnapshotError as error:
            return str(error)
        return None


def session_path(path: Path) -> Path:
    """Where the session of a saved conversation is."""
    return path.with_name(path.name + ".session")

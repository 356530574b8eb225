"""What the model has said, as it said it, for conversations that come back from clients as text.

A client sends an answer back in its own spelling: arguments of a call written anew, tokens unknown.  The next prompt
would then differ from what a session has read, and be read again.  So the text of every block of calls is remembered
by the ids of its calls, and the tokens of every answer by the prompt and the text that was sent.  Forgetting is safe:
it costs time.
"""

import hashlib
import json
import sqlite3
import threading
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.chat.format import ChatFormat
from penstock.chat.messages import Conversation, Message, ToolCall
from penstock.chat.prompt import Encoded, Piece
from penstock.machine.database import open_database

MAX_ENTRIES: Final = 16_384
MAX_BYTES: Final = 8 << 20  # of them in memory
PRUNE_EVERY: Final = 256  # entries added between two looks at how many there are
SCHEMA: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS remembered (name TEXT PRIMARY KEY, value BLOB, used REAL)",
    "SELECT name, value, used FROM remembered LIMIT 1",
)


class Replay:
    """The memory of one model's answers."""

    def __init__(self, format: ChatFormat, model: str, vocab_size: int, store: "LruStore"):
        self._format, self._model, self._vocab_size, self._store = format, model, vocab_size, store

    def remember(self, prompt: Encoded, answer: Message, sampled: Sequence[int]) -> None:
        """An answer is over; `sampled` are its tokens but for the one that ended it."""
        blocks = Counter(call.raw for call in answer.tool_calls)
        if None in blocks:  # a block with a defect: history shows the right form instead
            return
        if answer.reasoning is not None and not answer.content and not answer.tool_calls:
            return  # cut off while it was reasoning: a later prompt ends the reasoning, which the tokens do not
        for call in answer.tool_calls:
            facts = {
                "name": call.name,
                "arguments": call.arguments,
                "raw": call.raw,
                "calls": blocks[call.raw],
            }
            self._store.set(f"call {call.id}", json.dumps(facts).encode())
        tokens = [*prompt.ids[prompt.speech :], *sampled]  # a call that was forced had begun already
        self._store.set(
            self._key(prompt.before_speech, self._format.said(answer)), array("i", tokens).tobytes()
        )

    # ── calls, by id ──────────────────────────────────────────────────────────────────────────────────────

    def with_calls(self, conversation: Conversation) -> Conversation:
        """The same conversation, its calls as the model wrote them."""
        if not any(message.tool_calls for message in conversation.messages):
            return conversation
        return replace(conversation, messages=tuple(map(self._with_calls, conversation.messages)))

    def _with_calls(self, message: Message) -> Message:
        """Only if the whole block is there, and means the same: a client may have changed or left out a call."""
        known = [self._facts(call) for call in message.tool_calls]
        blocks = Counter(facts.get("raw") for facts in known)
        if any(facts.get("calls") != blocks[facts.get("raw")] for facts in known):
            return message
        calls = zip(message.tool_calls, known, strict=True)
        return replace(message, tool_calls=tuple(replace(call, raw=facts["raw"]) for call, facts in calls))

    def _facts(self, call: ToolCall) -> dict[str, Any]:
        """What is remembered of a call; nothing if it was another one."""
        facts = _parsed((self._store.get(f"call {call.id}") or b"").decode(errors="replace"))
        if not isinstance(facts, dict) or not isinstance(facts.get("raw"), str):
            return {}
        same = facts.get("name") == call.name and _parsed(str(facts.get("arguments"))) == _parsed(
            call.arguments
        )
        return facts if same else {}

    # ── answers, by what came before and what they say ────────────────────────────────────────────────────

    def recall(self, before: bytes, said: Sequence[Piece]) -> list[int] | None:
        """See `Recall`."""
        stored = self._store.get(self._key(before, said))
        if stored is None or len(stored) % 4:
            return None
        ids = array("i", stored).tolist()
        return ids if all(0 <= token < self._vocab_size for token in ids) else None

    def _key(self, before: bytes, said: Sequence[Piece]) -> str:
        digest = hashlib.sha256(self._model.encode() + before)
        for piece in said:  # markers and their spelling are different things
            digest.update(
                (b"\xff" if piece.special else b"") + piece.text.encode("utf-8", errors="surrogatepass")
            )
        return f"said {digest.hexdigest()}"


def _parsed(text: str) -> Any:
    """What JSON means, or the text itself if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class LruStore:
    """Small values by name, in memory and, if they are to outlive the process, in a SQLite file.  The least recently
    used leave first.  Errors of the file are not reported: what is kept here only saves time."""

    def __init__(self, file: Path | None = None, max_entries: int = MAX_ENTRIES):
        self._max_entries = max_entries
        self._entries: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._lock = threading.Lock()
        self._added = 0
        self._file = None if file is None else open_database(file, *SCHEMA)

    def get(self, name: str) -> bytes | None:
        with self._lock:
            if name in self._entries:
                self._entries.move_to_end(name)
                return self._entries[name]
            value = self._from_file(name)
            if value is not None:
                self._keep(name, value)
            return value

    def set(self, name: str, value: bytes) -> None:
        with self._lock:
            self._keep(name, value)
            if self._file is None:
                return
            with suppress(sqlite3.Error):
                row = (name, value, time.time())
                self._file.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?)", row)
                self._added += 1
                if self._added % PRUNE_EVERY == 1:
                    newest = "SELECT name FROM remembered ORDER BY used DESC LIMIT ?"
                    self._file.execute(
                        f"DELETE FROM remembered WHERE name NOT IN ({newest})", (self._max_entries,)
                    )

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _keep(self, name: str, value: bytes) -> None:
        self._bytes += len(value) - len(self._entries.pop(name, b""))
        self._entries[name] = value
        while len(self._entries) > self._max_entries or self._bytes > MAX_BYTES:
            self._bytes -= len(self._entries.popitem(last=False)[1])

    def _from_file(self, name: str) -> bytes | None:
        if self._file is None:
            return None
        with suppress(sqlite3.Error):
            row = self._file.execute("SELECT value FROM remembered WHERE name = ?", (name,)).fetchone()
            if row is not None and isinstance(row[0], bytes):
                self._file.execute("UPDATE remembered SET used = ? WHERE name = ?", (time.time(), name))
                return row[0]
        return None

"""What the model has said, as it said it, for conversations that come back from clients as text.

A client sends an answer back in its own spelling: arguments of a call written anew, tokens unknown.  The next prompt
would then differ from what a session has read, and be read again.  So the text of every block of calls is remembered
by the ids of its calls, and the tokens of every answer by the prompt and the text that was sent.  Forgetting is safe:
it costs time.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.chat.messages import Conversation, Message, ToolCall
from penstock.chat.pieces import Encoded, Piece
from penstock.chat.remembered import Remembered
from penstock.chat.render import said


class Replay:
    """The memory of one model's answers."""

    def __init__(self, model: str, vocab_size: int, memory: Remembered):
        self._model, self._vocab_size, self._memory = model, vocab_size, memory

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
            self._memory.set(f"call {call.id}", json.dumps(facts).encode())
        tokens = [*prompt.ids[prompt.speech :], *sampled]  # a call that was forced had begun already
        self._memory.set(self._key(prompt.before_speech, said(answer)), array("i", tokens).tobytes())

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
        facts = _parsed((self._memory.get(f"call {call.id}") or b"").decode(errors="replace"))
        if not isinstance(facts, dict) or not isinstance(facts.get("raw"), str):
            return {}
        same = facts.get("name") == call.name and _parsed(str(facts.get("arguments"))) == _parsed(
            call.arguments
        )
        return facts if same else {}

    # ── answers, by what came before and what they say ────────────────────────────────────────────────────

    def recall(self, before: bytes, said: Sequence[Piece]) -> list[int] | None:
        """See `Recall`."""
        stored = self._memory.get(self._key(before, said))
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

"""A prompt as pieces: markers, which enter by id, and text, which can never become one."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from penstock.chat.markers import ASSISTANT, END_THINK, REMINDER, THINK, USER, marker_id
from penstock.tokenizer import Tokenizer

TURNS: Final = (USER, ASSISTANT, REMINDER)


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a prompt.  `special`: a marker.  `message`: index of the message it belongs to, None for what is
    between messages.  `ids`: tokens that the model itself sampled for this text, used as they are.  `said`: part of
    what an assistant has said in a turn that is over, without the markers around it."""

    text: str
    special: bool = False
    message: int | None = None
    ids: tuple[int, ...] | None = None
    said: bool = False


class Recall(Protocol):
    """Knows which tokens the model chose to say something with, after the prompt of the digest `before`; or does not,
    and says None."""

    def __call__(self, before: bytes, said: "Sequence[Piece]") -> Sequence[int] | None: ...


class Encoded(NamedTuple):
    """A prompt in tokens, and places in it.

    shared  where the first turn begins: what is before is the same for all conversations with this system prompt
    stable  where the model is made to speak: what is before will be the same in the next turn
    speech  where what the model says begins
    """

    ids: list[int]
    shared: int
    stable: int
    speech: int

    @property
    def before_speech(self) -> bytes:
        """The digest that `Recall` gets for what is said now."""
        return digest(self.ids[: self.speech]).digest()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation.

    >>> from penstock.chat.messages import Conversation, Message, Role
    >>> from penstock.chat.render import render
    >>> render(Conversation((Message(Role.USER, "hi"),))).text
    '<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>'
    """

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The prompt as one string, for people and logs: only `ids` tells a marker from its spelling."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def thinking(self) -> bool:
        """Whether what follows is reasoning: the last think marker is an opening one."""
        return next((p.text == THINK for p in reversed(self.pieces) if p.special), False)

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids.  Neighbouring texts are encoded together, as the model saw them in training."""
        return self.encode(tokenizer).ids

    def encode(self, tokenizer: Tokenizer, recall: Recall | None = None) -> Encoded:
        """Token ids, those of what the model has said as it said them, if they are known."""
        ids: list[int] = []
        shared, stable, speech = 0, 0, 0
        before, seen = digest([]), 0
        for is_said, group in groupby(self.pieces, key=lambda piece: piece.said):
            pieces = tuple(group)
            if is_said and recall is not None:
                before.update(_bytes(ids[seen:]))
                seen = len(ids)
                if (known := recall(before.digest(), pieces)) is not None:
                    ids += known
                    continue
            for piece in joined(pieces):
                if piece.special and not is_said:
                    if piece.text in TURNS:
                        shared, stable = shared or len(ids), len(ids)
                    if piece.text in (THINK, END_THINK):
                        speech = len(ids) + 1
                ids += _encoded(piece, tokenizer)
        return Encoded(ids, shared, stable, speech)


def _encoded(piece: Piece, tokenizer: Tokenizer) -> Sequence[int]:
    if piece.ids is not None:
        return piece.ids
    return [marker_id(tokenizer, piece.text)] if piece.special else tokenizer.encode(piece.text)


def digest(ids: Sequence[int]) -> "hashlib._Hash":
    """Tells prompts apart."""
    return hashlib.sha256(_bytes(ids))


def _bytes(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def joined(pieces: tuple[Piece, ...]) -> Iterator[Piece]:
    """The same prompt with every run of text pieces made one."""
    run: list[str] = []
    for piece in pieces:
        if piece.special or piece.ids is not None:
            if run:
                yield Piece("".join(run))
                run = []
            yield piece
        elif piece.text:
            run.append(piece.text)
    if run:
        yield Piece("".join(run))

"""A prompt as pieces: markers, which enter by id, and text, which can never become one."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

from penstock.errors import TokenError
from penstock.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a prompt.

    special  the text is a marker's
    message  index of the message it belongs to, None for what is between messages
    ids      tokens that the model itself sampled for this text, used as they are
    said     part of what an assistant has said in a turn that is over, without the markers around it
    place    what a marker stands for: "bos" and "eos" are named by the model's metadata, whatever their spelling; at
             "turn" a turn begins; after "speech" the model speaks
    """

    text: str
    special: bool = False
    message: int | None = None
    ids: tuple[int, ...] | None = None
    said: bool = False
    place: Literal["", "bos", "eos", "turn", "speech"] = ""


class Recall(Protocol):
    """Knows which tokens the model chose to say something with, after the prompt of the digest `before`; or does not,
    and says None."""

    def __call__(self, before: bytes, said: Sequence[Piece]) -> Sequence[int] | None: ...


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
        return hashlib.sha256(array("i", self.ids[: self.speech]).tobytes()).digest()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation.

    thinking   what follows is reasoning
    continues  the last message, an assistant's, is open: what follows goes on with it
    forced     the prompt ends with the beginning of a tool call
    """

    pieces: tuple[Piece, ...]
    thinking: bool = False
    continues: bool = False
    forced: bool = False

    @property
    def text(self) -> str:
        """The prompt as one string, for people and logs: only `ids` tells a marker from its spelling."""
        return "".join(piece.text for piece in self.pieces)

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids.  Neighbouring texts are encoded together, as the model saw them in training."""
        return self.encode(tokenizer).ids

    def count(self, tokenizer: Tokenizer, recall: Recall | None = None) -> int:
        """How many tokens it has, in four bytes of memory for each."""
        return len(self._encode(tokenizer, recall, None)[0])

    def encode(self, tokenizer: Tokenizer, recall: Recall | None = None, most: int | None = None) -> Encoded:
        """Token ids, those of what the model has said as it said them, if they are known.  Raises
        ContextLengthError as soon as it is certain that there are more than `most`."""
        ids, shared, stable, speech = self._encode(tokenizer, recall, most)
        return Encoded(ids.tolist(), shared, stable, speech)

    def _encode(
        self, tokenizer: Tokenizer, recall: Recall | None, most: int | None
    ) -> "tuple[array[int], int, int, int]":
        ids = array("i")
        shared, stable, speech = 0, 0, 0
        before, seen = hashlib.sha256(), 0
        for is_said, group in groupby(self.pieces, key=lambda piece: piece.said):
            pieces = tuple(group)
            if is_said and recall is not None:
                before.update(ids[seen:].tobytes())
                seen = len(ids)
                if (known := recall(before.digest(), pieces)) is not None:
                    ids.extend(known)
                    continue
            for piece in _joined(pieces):
                if piece.place == "turn":
                    shared, stable = shared or len(ids), len(ids)
                elif piece.place == "speech" and not is_said:
                    speech = len(ids) + 1
                for part in _encoded(piece, tokenizer, most, len(ids)):
                    ids.extend(part)
        return ids, shared, stable, speech


def marker_id(tokenizer: Tokenizer, marker: str) -> int:
    """Id of a marker; TokenError if this model's vocabulary has none."""
    found = tokenizer.token_id(marker)
    if found is None or not tokenizer.is_special(found):
        raise TokenError(f"the model's vocabulary has no {marker} token: it is not a chat model (use --raw)")
    return found


def _encoded(piece: Piece, tokenizer: Tokenizer, most: int | None, before: int) -> Iterable[Sequence[int]]:
    if piece.ids is None and not piece.special:
        return tokenizer.encode_parts(piece.text, most=most, before=before)
    return (_marked(piece, tokenizer),)


def _marked(piece: Piece, tokenizer: Tokenizer) -> Sequence[int]:
    if piece.ids is not None:
        return piece.ids
    if piece.place == "bos":
        if tokenizer.bos_id is None:
            raise TokenError("the model's metadata names no BOS token (use --raw)")
        return [tokenizer.bos_id]
    if piece.place == "eos" and tokenizer.eos_ids and tokenizer.token_id(piece.text) not in tokenizer.eos_ids:
        return tokenizer.eos_ids[:1]
    return [marker_id(tokenizer, piece.text)]


def _joined(pieces: tuple[Piece, ...]) -> Iterator[Piece]:
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

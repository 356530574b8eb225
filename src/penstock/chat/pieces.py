"""A prompt as pieces: markers, which enter by id, and text, which can never become one."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.chat.markers import THINK, marker_id
from penstock.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a prompt.  `special`: a marker.  `message`: index of the message it belongs to, None for what is
    between messages.  `ids`: tokens that the model itself sampled for this text, used as they are."""

    text: str
    special: bool = False
    message: int | None = None
    ids: tuple[int, ...] | None = None


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
        result: list[int] = []
        for piece in joined(self.pieces):
            if piece.ids is not None:
                result += piece.ids
            elif piece.special:
                result.append(marker_id(tokenizer, piece.text))
            else:
                result += tokenizer.encode(piece.text)
        return result


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

"""Text from tokens that arrive one at a time."""

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Yields text as soon as its characters are complete: a character may be spread over several tokens.

    The concatenation of all `push` results and `finish` equals `Tokenizer.decode` of the same ids.
    """

    def __init__(self, text_bytes: Callable[[int], bytes]) -> None:
        self._text_bytes = text_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; may be empty."""
        return self._utf8.decode(self._text_bytes(token_id))

    def finish(self) -> str:
        """What remains: U+FFFD if the text ended inside a character.  The decoder is then as new."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest

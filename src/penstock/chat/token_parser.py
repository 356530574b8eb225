"""From sampled tokens to events."""

from penstock.chat.events import Event
from penstock.chat.markers import DSML, END_THINK, EOS
from penstock.chat.parse import Parser
from penstock.tokenizer import Tokenizer


class TokenParser:
    """Feeds a `Parser` with token ids.  Markers are known by id; spelled out in ordinary tokens, those of reasoning
    and tool calls count as well.  Characters spread over several tokens are held until complete."""

    def __init__(self, tokenizer: Tokenizer, parser: Parser):
        self.parser = parser
        self.tokens: list[int] = []  # as sampled, without what ended the turn
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream()
        self._marks = {tokenizer.token_id(token) for token in (END_THINK, DSML)}

    @property
    def finished(self) -> bool:
        """Whether the turn is over for the parser, so that generation may end."""
        return self.parser.finished

    def push(self, token: int) -> list[Event]:
        """Events of what this token makes certain."""
        if token in self._tokenizer.eos_ids:
            return self.parser.push(self._decoder.finish()) + self.parser.push(EOS, special=True)
        if not self.finished:
            self.tokens.append(token)
        if self._tokenizer.is_special(token) and token not in self._marks:
            text = self._tokenizer.token_bytes(token).decode("utf-8", errors="replace")
            return self.parser.push(self._decoder.finish()) + self.parser.push(text, special=True)
        return self.parser.push(self._decoder.push(token))

    def finish(self, reason: str) -> list[Event]:
        """The rest, and `Done`."""
        return self.parser.push(self._decoder.finish()) + self.parser.finish(reason)

"""Stop strings in a chat: they end the answer, and mean nothing in reasoning and tool calls."""

from collections.abc import Iterable, Iterator, Sequence

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta
from penstock.engine.stops import StopStrings


class AnswerStop:
    """Lets events through until a stop string appears in the answer, and never shows part of one."""

    def __init__(self, strings: Sequence[str]):
        self._stops = StopStrings(strings)

    @property
    def found(self) -> bool:
        """The answer is over: generation may end."""
        return self._stops.found

    def events(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if self.found:
                return
            if isinstance(event, TextDelta):
                yield from self._answer(event.text)
                continue
            held = "" if isinstance(event, ReasoningDelta) else self._stops.finish()
            if held:
                yield TextDelta(held)
            yield event

    def _answer(self, text: str) -> Iterator[Event]:
        shown = self._stops.push(text)
        if shown:
            yield TextDelta(shown)
        if self.found:
            yield Done("stop")

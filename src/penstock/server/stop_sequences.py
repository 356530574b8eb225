"""Stop strings for an API that wants to know which one it was."""

from collections.abc import Sequence

from penstock.engine.stops import StopStrings


class StopSequences:
    """Like `StopStrings`, but `found` is the string.

    >>> stops = StopSequences(["END", "."])
    >>> stops.push("one E"), stops.push("ND two."), stops.found
    ('one ', '', 'END')
    """

    def __init__(self, strings: Sequence[str]):
        self.found: str | None = None
        self._stops = StopStrings(strings)
        self._unshown = ""

    def push(self, text: str) -> str:
        """The text that is now safe to show."""
        self._unshown += text
        shown = self._stops.push(text)
        self._unshown = self._unshown[len(shown) :]
        if self._stops.found and self.found is None:
            # Of several that begin here, the shortest was complete first.
            self.found = min((s for s in self._stops.strings if self._unshown.startswith(s)), key=len)
        return shown

    def finish(self) -> str:
        """What was held back, once no more text can come."""
        self._unshown = ""
        return self._stops.finish()

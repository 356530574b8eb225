"""Stop strings in streamed text."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through until a stop string appears, and never shows part of one.  `found`: which it was.

    >>> stops = StopStrings(["END", "."])
    >>> stops.push("one E"), stops.push("Nough EN"), stops.push("D two."), stops.found
    ('one ', 'ENough ', '', 'END')
    """

    def __init__(self, strings: Sequence[str]):
        self.strings = tuple(strings)
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """The text that is now safe to show."""
        if self.found is not None:
            return ""
        self._held += text
        places = [(at + len(stop), at, stop) for stop in self.strings if (at := self._held.find(stop)) >= 0]
        if places:  # the one that is complete first, as if the text had come letter by letter
            _, at, self.found = min(places)
            shown, self._held = self._held[:at], ""
            return shown
        keep = max((self._overlap(stop) for stop in self.strings), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _overlap(self, stop: str) -> int:
        """Length of the longest beginning of `stop` that the held text ends with."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)

    def finish(self) -> str:
        """What was held back, once no more text can come."""
        shown, self._held = self._held, ""
        return shown

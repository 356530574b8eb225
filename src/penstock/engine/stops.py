"""Stop strings in streamed text."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Node:
    """A beginning of stop strings: which letters go on with it, where its longest proper end is that is a beginning
    too, and the longest stop string that ends with it."""

    depth: int
    next: "dict[str, _Node]" = field(default_factory=dict)
    fall: "_Node | None" = None
    stop: str | None = None


class StopStrings:
    """Lets text through until a stop string appears, and never shows part of one.  `found`: which it was, the one
    that is complete first, and of several the longest.  What a letter costs does not depend on how many there are
    (Aho and Corasick).

    >>> stops = StopStrings(["END", "."])
    >>> stops.push("one E"), stops.push("Nough EN"), stops.push("D two."), stops.found
    ('one ', 'ENough ', '', 'END')
    """

    def __init__(self, strings: Iterable[str]):
        self.strings = tuple(strings)
        self.found: str | None = None
        self._root = self._at = _tree(self.strings)
        self._held = ""  # the letters of `_at`: they may become a stop string

    def push(self, text: str) -> str:
        """The text that is now safe to show."""
        if self.found is not None:
            return ""
        if not self.strings:
            return text
        at = self._at
        for place, letter in enumerate(text, len(self._held) + 1):
            while (follows := at.next.get(letter)) is None and at.fall is not None:
                at = at.fall
            at = follows or self._root
            if at.stop is not None:
                self.found = at.stop
                shown, self._held = (self._held + text)[: place - len(at.stop)], ""
                return shown
        self._at, held = at, self._held + text
        cut = len(held) - at.depth
        shown, self._held = held[:cut], held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back, once no more text can come."""
        shown, self._held, self._at = self._held, "", self._root
        return shown


def _tree(strings: tuple[str, ...]) -> _Node:
    root = _Node(0)
    for string in strings:
        at = root
        for letter in string:
            at = at.next.setdefault(letter, _Node(at.depth + 1))
        at.stop = string
    queue = deque([root])
    while queue:  # by depth: where a node falls to is known before the node's own children need it
        node = queue.popleft()
        for letter, child in node.next.items():
            fall = node.fall
            while fall is not None and letter not in fall.next:
                fall = fall.fall
            child.fall = root if fall is None else fall.next[letter]
            child.stop = child.stop or child.fall.stop
            queue.append(child)
    return root

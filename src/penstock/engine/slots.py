"""Requests that are being answered: each has a slot with a session, and together they keep within their memory."""

from collections.abc import Iterator

from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import MIN_PREFIX, Match, PrefixCache, common_length
from penstock.engine.requests import FIRST_CHECKPOINT, PrefixWait, Request, Slot


class Slots:
    """Oldest first.  Sessions come from the prefix cache and go back there."""

    def __init__(self, engine: Engine, prefix_cache: PrefixCache, most: int):
        self.most, self._engine, self._prefix_cache = most, engine, prefix_cache
        self._slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        """Over a copy: slots may be taken and left meanwhile."""
        return iter(self._slots.copy())

    @property
    def youngest(self) -> Slot:
        return self._slots[-1]

    @property
    def full(self) -> bool:
        return len(self._slots) >= self.most

    def take(self, request: Request) -> Slot:
        """A slot for a request, with what the cache has of its prompt."""
        if request.score is None or request.scored == len(request.prompt):
            # What is to be pinned has to be passed: a session that is beyond cannot go back there.
            match = self._prefix_cache.take(
                request.tokens[: request.shared + 1] if request.pin else request.tokens
            )
        else:  # what is cached has no logits any more
            match = Match(self._engine.session(), "none", "new")
        slot = Slot(request, match)
        self._slots.append(slot)
        if request.pin and slot.session.position == request.shared:
            self._prefix_cache.keep(slot.session, f"pinned-{request.pin}")
        return slot

    def leave(self, slot: Slot) -> None:
        """The request is over."""
        self._slots.remove(slot)
        self._prefix_cache.in_use = self.bytes
        if slot.generation is not None:  # what was only scored is rarely continued
            self._prefix_cache.give(slot.session)

    def preempt(self, slot: Slot) -> None:
        """The session goes to the cache, which may have no room for it; the request will need another slot."""
        slot.request.preempted = slot.tokens
        self._slots.remove(slot)
        if slot.generation is not None:
            self._prefix_cache.give(slot.session)

    def clear(self) -> None:
        self._slots.clear()

    def waits_for_prefix(self, request: Request) -> bool:
        """Whether a slot is reading what this prompt begins with, so that it need not be read twice."""
        if request.waits_for is not None and request.waits_for.is_coming(self._slots):
            return True
        request.waits_for = None
        for slot in self._slots if request.score is None else ():
            if not slot.prefilling or slot.request.score is not None:
                continue
            common = common_length(slot.request.prompt, request.tokens[:-1])
            lengths = [length for length in (slot.request.shared, slot.stable) if length <= common]
            length = max(lengths, default=0)
            is_new = length - slot.session.position >= MIN_PREFIX
            if is_new and length - self._prefix_cache.usable(request.tokens) >= MIN_PREFIX:
                request.waits_for = PrefixWait(slot, length)
                return True
        return False

    def keep(self, slot: Slot) -> None:
        """Part of a prompt has been read: keeps the session where others may go on from here."""
        position, session, cache = slot.session.position, slot.session, self._prefix_cache
        if slot.generation is None:
            return
        if not slot.pending and not slot.resumed:
            # What follows may be told differently next time, so the prompt's end is kept.
            back = min(position - slot.stable, session.max_rewind)
            cache.keep(session, "prompt", back=back)
        elif position == slot.request.shared:
            cache.keep(session, f"pinned-{slot.request.pin}" if slot.request.pin else "system")
        elif cache.disk is not None and position >= FIRST_CHECKPOINT and _is_power_of_two(position):
            cache.keep(session, "frontier")

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def bytes(self) -> int:
        """Of the sessions in use."""
        return sum(self._engine.state_bytes(slot.session.position) for slot in self._slots)

    @property
    def too_large(self) -> bool:
        return self.bytes > self._prefix_cache.budget

    def has_room(self, request: Request) -> bool:
        """Whether a session for this prompt fits beside those in use.  One alone always does: the plan has it."""
        needed = self._engine.state_bytes(len(request.tokens))
        return not self._slots or self.bytes + needed <= self._prefix_cache.budget


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0

"""Experts of long steps on their way through a device: one half of some slots is computed with, the other fills.

Where the host has all experts at hand, the first ones of the next layer follow at once: with many rows nearly all of
them will be needed, whoever they are, and the link never rests.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import ExpertSlots, Wave
from penstock.storage.tiers.host import HostTier
from penstock.storage.tiers.placement import Placement


class Passing:
    """blocks: that share the slots, in the order of layers; others' experts do not pass here."""

    def __init__(self, host: HostTier, slots: ExpertSlots, placement: Placement, blocks: Sequence[int]):
        self._host, self._slots, self._placement = host, slots, placement
        self._following = dict(pairwise(blocks))
        self._turn = 0
        self._done: list[Callable[[], None] | None] = [
            None,
            None,
        ]  # of each half: what its last wave is awaited by
        # A block, and those of its experts that are coming
        self._ahead: tuple[int, dict[int, int]] | None = None

    def forget(self) -> None:
        """Slots are about to be used otherwise: nothing may be on its way to them."""
        if self._ahead is not None:
            self._slots.wait()
        self._ahead, self._done = None, [None, None]

    def waves(
        self, block: int, missing: Sequence[int], places: NDArray[np.int32], most: bool
    ) -> Iterator[Wave]:
        """places: of what is there; what passes is added
        most: whether most of the experts are needed, so that the next layer will need most of its own too"""
        experts = self._host.source.experts
        if self._host.cache is not None:
            yield from self._from_disk(block, missing, places)
            return
        first = 0
        for numbers, slots in self._groups(block, missing):
            places[numbers] = slots
            last = experts if not missing or numbers[-1] == missing[-1] else numbers[-1] + 1
            yield from self._wave(Wave(first, last))
            first = last
        if first < experts:
            yield Wave(first, experts)
        if most:
            self._begin_next(block)

    def _groups(self, block: int, missing: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
        """As many as a half of the slots holds, with their slots."""
        if self._ahead is not None and self._ahead[0] != block:  # a step that ended early
            self.forget()
        ahead, self._ahead = self._ahead, None
        left = list(missing)
        if ahead is not None:
            early = [number for number in left if number in ahead[1]]
            left = [number for number in left if number not in ahead[1]]
            if early:
                yield early, [ahead[1][number] for number in early]
        size = len(self._placement.passing) // 2
        for at in range(0, len(left), size):
            group = left[at : at + size]
            slots = self._bring(block, group)
            yield group, [slots[number] for number in group]

    def _wave(self, wave: Wave) -> Iterator[Wave]:
        half = 1 - self._turn % 2  # the one that was filled last
        self._slots.join()
        yield wave
        self._done[half] = self._slots.mark()

    def _half(self) -> list[int]:
        """The next half, once nobody computes with it."""
        passing, half = self._placement.passing, self._turn % 2
        self._turn += 1
        done = self._done[half]
        if done is not None:
            done()
        size = len(passing) // 2
        return passing[half * size : (half + 1) * size]

    def _bring(self, block: int, numbers: Sequence[int]) -> dict[int, int]:
        slots = dict(zip(numbers, self._half(), strict=False))
        with self._host.lend(block, numbers, True, self._slots.wait) as arrivals:
            for some in arrivals:
                self._slots.bring_all([slots[number] for number in some], list(some.values()))
        return slots

    def _begin_next(self, block: int) -> None:
        following, experts = self._following.get(block), self._host.source.experts
        if following is None:
            return
        base, cache = following * experts, self._placement.cache
        absent = [number for number in range(experts) if base + number not in cache]
        group = absent[: len(self._placement.passing) // 2]
        if group:
            self._ahead = (following, self._bring(following, group))

    def _from_disk(self, block: int, missing: Sequence[int], places: NDArray[np.int32]) -> Iterator[Wave]:
        first, free, group = 0, list[int](), list[int]()
        with self._host.lend(block, missing, True, self._slots.wait) as arrivals:
            for some in arrivals:
                for number, expert in some.items():
                    if not free and not group:
                        free = self._half()
                    places[number] = free[len(group)]
                    self._slots.bring(free[len(group)], expert)
                    group.append(number)
                    if len(group) == len(free):
                        yield from self._wave(Wave(first, number + 1))
                        first, free, group = number + 1, [], []
            if group or first < self._host.source.experts:
                yield from self._wave(Wave(first, self._host.source.experts))

"""What memory takes that a run needs for the first time: to become real, to be read to, to hold a mapped file."""

import mmap
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.machine.cpu import read_cpu
from penstock.machine.memory import read_memory
from penstock.machine.notes import recall, remember
from penstock.machine.pages import give_back, reserve
from penstock.storage.page_cache import THREADS, TRIED, Absent, Gaps, try_to_bring
from penstock.storage.plan import Plan
from penstock.storage.read_speed import slower_at_first
from penstock.storage.source import ExpertSource

PIECE: Final = 64 << 20  # bytes that are made memory to see how long that takes
PATIENCE: Final = 6.0  # seconds for all of them: where memory is memory, hundreds of gigabytes
FORGETS: Final = 0.9  # what is left of a slow moment with the next plan
LASTS: Final = 0.85  # of memory, the share that is still as it was for a run that begins right after
SLOWEST: Final = 1e-7  # seconds that a byte may take to be believed
YOUNG: Final = 1 << 29  # bytes of new memory that experts are read to
BROUGHT: Final = 2 * THREADS * TRIED  # bytes of a mapped file that are brought, and more


class Filling(NamedTuple):
    """Seconds that a byte of new memory takes to become real: for a program that begins right after, and at best and
    at worst.  So much of it did, from its beginning, and so much is still as slow as it was."""

    usual: float
    quickest: float
    slowest: float
    nbytes: int = 0
    slow: int = 0


def measure_filling(memory: mmap.mmap, unused: int, threads: int) -> Filling:
    """As memory is for a program that will need so much of it: it is filled, for some seconds at most, given back and
    filled again.

    What was in use a moment ago is there at once.  What was free for longer the host of a virtual machine has taken
    back, and it comes forty times as slowly.  So what is filled now will be quick for who comes next, and the rest as
    slow as it was at the end; but no more of it than is unused: beyond that memory comes from files, given up.
    """
    pages = np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE]
    step = PIECE // mmap.PAGESIZE
    starts = range(0, len(memory) // PIECE * step, step)
    end, pieces = time.perf_counter() + PATIENCE, list[float]()  # seconds of a byte
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(starts), threads):
            if pieces and time.perf_counter() >= end:
                break
            group = starts[first : first + threads]
            pieces += pool.map(lambda start: _fill(pages[start : start + step]), group)
    nbytes, filled = len(starts) * PIECE, len(pieces) * PIECE
    give_back(memory, 0, filled)
    again = _fill(pages[: len(pieces) * step])
    slow = max(0, min(nbytes, unused) - filled)
    usual = (again * (nbytes - slow) + pieces[-1] * slow) / nbytes
    return Filling(usual, min(again, *pieces), max(pieces), filled, slow)


def _fill(pages: NDArray[np.uint8]) -> float:
    """pages: a byte of each.  Seconds of a byte, by one core; other threads run meanwhile"""
    before = time.perf_counter()
    pages[:] = 1
    return (time.perf_counter() - before) / (len(pages) * mmap.PAGESIZE)


class NewMemory(NamedTuple):
    """What memory takes that a run needs for the first time: to become real; seconds longer that a byte takes to be
    read there for the second time; and what of a mapped file takes to come there, as a rule, at best and at worst.

    kept: the memory that was filled.  Two seconds after it is free the host of a virtual machine begins to take it
    back, so it stays until the plan is made: a run that begins then finds what was measured."""

    filling: Filling = Filling(0.0, 0.0, 0.0)
    young: float = 0.0
    absent: Absent = Absent()
    soonest: Absent = Absent()
    latest: Absent = Absent()
    kept: mmap.mmap | None = None


def new_memory(plan: Plan, source: ExpertSource, gaps: Gaps = Gaps()) -> NewMemory:
    """For a run with this plan, to which these gaps of a mapped file come."""
    streams = plan.mode == "direct"
    before = try_to_bring(gaps.nbytes, gaps.windows[::2])  # to memory as it is
    needed = plan.work + (plan.experts_held if streams else gaps.nbytes)
    here = read_memory()
    memory = reserve(max(PIECE, min(needed, here.room // 2)), large=True)
    now = measure_filling(memory, here.unused, read_cpu().usable)
    usual, slowest = _usual("seconds", now.usual, now.slowest)
    young = 0.0
    if streams:
        last = np.frombuffer(memory, np.uint8)[max(0, now.nbytes - YOUNG) : now.nbytes]
        found = slower_at_first(source, last)
        young, _ = _usual("young", found, found)
    give_back(memory, 0, min(now.nbytes, BROUGHT))
    after = try_to_bring(gaps.nbytes, gaps.windows[1::2])  # to memory that was in use
    absent = latest = Absent(gaps.nbytes)
    if gaps.windows:
        slow = min(1.0, now.slow / gaps.nbytes)
        seconds, longest = _of_file("seconds", gaps, before.seconds, after.seconds, slow)
        working, hardest = _of_file("working", gaps, before.working, after.working, slow)
        absent, latest = Absent(gaps.nbytes, seconds, working), Absent(gaps.nbytes, longest, hardest)
    return NewMemory(now._replace(usual=usual, slowest=slowest), young, absent, after, latest, memory)


def _of_file(what: str, gaps: Gaps, before: float, after: float, slow: float) -> tuple[float, float]:
    """Seconds that a mapped file takes where so much of memory is slow, and at worst."""
    name = f"file {what}"
    _, slowest = _usual(name, after / gaps.nbytes, max(before, after) / gaps.nbytes)
    worst, share = gaps.nbytes * slowest, LASTS * (1 - slow)
    return share * after + (1 - share) * worst, worst


def _usual(name: str, now: float, slow: float) -> tuple[float, float]:
    """What a run finds, and the slowest that was seen.  It lies between that and what is found now: the host of a
    virtual machine takes back what is free, and it is not known when the run begins."""
    known = recall("filling").get(name)
    before = known if isinstance(known, float) and 0 < known < SLOWEST else 0.0
    slowest = max(slow, before)
    remember("filling", name, max(slow, FORGETS * before))
    return LASTS * now + (1 - LASTS) * slowest, slowest

"""A recorded trace run again through the tiers: where each expert would have been found, and who would have computed
it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.errors import OptionError
from penstock.sizes import write_amount
from penstock.storage.cache import make_cache
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division
from penstock.storage.tiers.placement import LONG, Placement, fewest_slots
from penstock.storage.trace import Trace, TraceHeader


@dataclass(frozen=True)
class Slots:
    """Of a device, for the experts of some blocks, by number."""

    blocks: tuple[int, ...]
    count: int
    long_count: int
    passing: int
    chunk: int = 0  # rows of the step that leaves `long_count`
    step: int = 1


def replay_tiers(
    trace: Trace, policy: str, slots: Sequence[Slots], memory: int | None, division: Division
) -> TierCounters:
    """What the engine would have counted, exactly: the same bookkeeping is asked for the same experts.

    memory: bytes of the host for experts; None: it has all of them
    """
    header, counters = trace.header, TierCounters()
    cache = None if memory is None else make_cache(policy, memory, header.block_bytes, header.experts)
    used = experts_used(trace)
    placements: dict[int, Placement] = {}
    for each in slots:
        placement = Placement(
            policy,
            each.count,
            division,
            counters,
            blocks=len(header.block_bytes),
            experts=header.experts,
            used=used,
            memory=cache,
            passing=each.passing,
            long_slots=each.long_count,
            chunk=each.chunk,
            step=each.step,
        )
        placements |= dict.fromkeys(each.blocks, placement)
    keys = trace.keys.tolist()
    bounds = pairwise(trace.starts.tolist())
    for block, rows, (start, stop) in zip(trace.blocks.tolist(), trace.rows.tolist(), bounds, strict=True):
        numbers = [key % header.experts for key in keys[start:stop]]
        placement, nbytes = placements[block], header.block_bytes[block]
        if rows > LONG:
            missing = placement.long_turn(block, numbers, rows)
            counters.link_bytes += len(missing) * nbytes
        else:
            turn = placement.turn(block, numbers, rows)
            missing = sorted([*turn.bring, *turn.host])
            counters.link_bytes += len(turn.bring) * nbytes
        if cache is not None and missing:
            for key in placement.spared(block, missing):
                cache.drop(key)
            for _ in cache.request([block * header.experts + number for number in missing]):
                pass
    for placement in placements.values():
        placement.settle()
    return counters


def experts_used(trace: Trace) -> int:
    """Experts of a token, as far as a trace tells."""
    counts = trace.starts[1:] - trace.starts[:-1]
    return int((-(-counts // trace.rows)).max()) if len(counts) else 1


def divide_slots(header: TraceHeader, vram: int, used: int) -> list[Slots]:
    """Slots in so many bytes of a device: blocks whose experts are alike share them, and each kind holds the same
    share of its experts."""
    kinds: dict[int, list[int]] = {}
    for block, nbytes in enumerate(header.block_bytes):
        kinds.setdefault(nbytes, []).append(block)
    share, found = min(1.0, vram / header.total_bytes), []
    passing = 2 * min(64, header.experts)
    for blocks in kinds.values():
        fewest, everything = fewest_slots(header.experts, used, passing), header.experts * len(blocks)
        count = int(everything * share)
        if count < fewest:
            least = fewest * header.total_bytes // everything
            raise OptionError(
                f"--tiers: {write_amount(vram)} of a device hold too few experts, expected {write_amount(least)}"
            )
        found.append(Slots(tuple(blocks), count, count, passing))
    return found

"""What the host does in a layer of a model in tiers, besides computing: deciding, and settling what was decided.

    python -m benchmarks.tier_turns [--slots 2080]

Layers and experts of the published model, routing uniform, on a device that has sent its choice already and takes
everything at once, beside processors that compute nothing.  *answer* is one turn: native code decides and answers.
*ahead* and *settle* happen while the card computes.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from penstock.backend.base import AtHand, ExpertSlots, HostExpert
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.weights import CpuExpertTable
from penstock.backend.device import Meeting
from penstock.storage.policies import Key
from penstock.storage.source import ExpertSource
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.experts import Pool, TieredExperts
from penstock.storage.tiers.host import MappedTier
from penstock.storage.tiers.passing import Passing
from penstock.storage.tiers.placement import Placement
from penstock.storage.tiers.plan import Kind
from penstock.weights.imagined import imagine
from penstock.weights.synth import stored_type
from penstock.weights.widths import WIDTHS

TIMES = Times(143e-6, (99e-6, 350e-6, 1.4e-3), call=46e-6)  # an H200 beside sixteen cores
TOKENS = 60


class NoExpert(HostExpert):
    parts: Sequence[int] = (0, 0, 0)


class NoSlots(ExpertSlots):
    def __init__(self, count: int):
        self.count = count

    def bring(self, slot: int, expert: HostExpert) -> None: ...

    def join(self) -> None: ...

    def wait(self) -> None: ...

    def mark(self) -> Callable[[], None]:
        return self.wait

    def resize(self, count: int) -> int:
        return count


class NoHost(MappedTier):
    def __init__(self, source: ExpertSource, backend: CpuBackend):
        super().__init__(source, backend)
        self.pinned = True

    def expert(self, key: Key) -> HostExpert:
        del key
        return _EXPERT

    def at_hand(self, placement: int, block: int) -> AtHand:
        experts = self.source.experts
        return AtHand(placement, block, CpuExpertTable(experts), np.zeros((experts, 3), np.uint64))


_EXPERT = NoExpert()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_turns")
    parser.add_argument("--slots", type=int, default=2080)
    slots = parser.parse_args().slots
    checkpoint = imagine(WIDTHS["flash"].whole(), lambda each: stored_type(each, "q2"))
    source, config, counters = ExpertSource(checkpoint), checkpoint.config, TierCounters()
    processors = CpuBackend(1)
    host, division = NoHost(source, processors), Division(TIMES, exact=True)
    placement = Placement(
        "lfru",
        slots,
        division,
        counters,
        blocks=len(source.blocks),
        experts=config.experts,
        used=config.experts_used,
        passing=128,
    )
    device = NoSlots(slots)
    blocks = tuple(range(config.layer_count))
    kind = Kind(blocks, slots, slots, 200, 64, 7_340_032, 128)
    pool = Pool(placement, device, Passing(host, device, placement, blocks), kind)
    table = processors.expert_table(config.experts)
    store = TieredExperts(host, [pool] * len(source.blocks), counters, table, division)
    sent, answered, arrivals = (np.zeros(count, np.uint32) for count in (1, 6, 4))
    x, ids = np.zeros((1, config.hidden), np.float32), np.zeros((1, config.experts_used), np.int64)
    meeting = Meeting(sent, answered, arrivals, np.zeros(config.experts, np.int32), ids[0])
    share = processors.share(x, ids, np.zeros((1, config.experts_used), np.float32), x.copy(), 10.0)
    leases = [store.acquire(source.blocks[block], None) for block in blocks]
    turns = [share.turns(meeting, lease.at_hand) for lease in leases if lease.at_hand is not None]
    rng, spent = np.random.default_rng(0), defaultdict[str, list[float]](list)
    for turn in range(1, TOKENS * len(blocks) + 1):
        lease = leases[turn % len(blocks)]
        ids[0] = rng.choice(config.experts, config.experts_used, replace=False)
        likely = rng.choice(config.experts, config.experts_used, replace=False)
        sent[0] = turn
        begin = time.perf_counter()
        turns[turn % len(blocks)].take(turn, 1, lease, lambda: None)
        spent["answer"].append(time.perf_counter() - begin)
        if lease.guesses:
            begin = time.perf_counter()
            lease.ahead(likely)
            spent["ahead"].append(time.perf_counter() - begin)
        if placement.is_full((turn + 1) % len(blocks), 1):
            begin = time.perf_counter()
            store.settle()
            spent["settle"].append(time.perf_counter() - begin)
    found = {
        "slots": slots,
        "hit_rate": counters.device_hits / (counters.device_hits + counters.device_misses),
    }
    for name, seconds in spent.items():  # slots are full in the second half
        found[f"{name}_us"] = 1e6 * statistics.median(seconds[len(seconds) // 2 :])
    found["turns_settled_together"] = len(spent["answer"]) / len(spent["settle"])
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()

"""What the host does in a layer of a model in tiers, besides computing: deciding, and settling what was decided.

    python -m benchmarks.tier_turns [--slots 2080]

Layers and experts of the published model, routing uniform, on a device that takes everything at once: Python alone.
*decide* stands between a layer's choice and its first copies; *settle* happens while the card has the next layer.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from penstock.backend.base import ExpertSlots, HostExpert
from penstock.backend.cpu.backend import CpuBackend
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

TIMES = Times(143e-6, (99e-6, 350e-6, 1.4e-3), ask=15e-6, call=46e-6)  # an H200 beside sixteen cores
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
    def expert(self, key: Key) -> HostExpert:
        del key
        return _EXPERT


class NoTable:
    def put(self, number: int, expert: HostExpert) -> None: ...

    def remove(self, number: int) -> None: ...


_EXPERT = NoExpert()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_turns")
    parser.add_argument("--slots", type=int, default=2080)
    slots = parser.parse_args().slots
    checkpoint = imagine(WIDTHS["flash"].whole(), lambda each: stored_type(each, "q2"))
    source, config, counters = ExpertSource(checkpoint), checkpoint.config, TierCounters()
    host, division = NoHost(source, CpuBackend(1)), Division(TIMES)
    placement = Placement(
        "lfru", slots, division, counters, experts=config.experts, used=config.experts_used, passing=128
    )
    device = NoSlots(slots)
    blocks = tuple(range(config.layer_count))
    kind = Kind(blocks, slots, slots, 200, 64, 7_340_032, 128)
    pool = Pool(placement, device, Passing(host, device, placement, blocks), kind)
    table = NoTable()
    store = TieredExperts(host, [pool] * len(source.blocks), counters, table, division)  # type: ignore[arg-type]
    rng, decide, settle = np.random.default_rng(0), list[float](), list[float]()
    for _ in range(TOKENS):
        for block in blocks:
            lease = store.acquire(source.blocks[block], None)
            ids = rng.choice(config.experts, (1, config.experts_used), replace=False).astype(np.int64)
            begin = time.perf_counter()
            for _ in lease.turn(ids):
                pass
            middle = time.perf_counter()
            lease.settle()
            decide.append(middle - begin)
            settle.append(time.perf_counter() - middle)
    late = len(decide) // 2  # slots are full by then
    print(
        json.dumps(
            {
                "slots": slots,
                "hit_rate": round(counters.device_hits / (counters.device_hits + counters.device_misses), 3),
                "decide_us": round(1e6 * statistics.median(decide[late:]), 1),
                "settle_us": round(1e6 * statistics.median(settle[late:]), 1),
            }
        )
    )


if __name__ == "__main__":
    main()

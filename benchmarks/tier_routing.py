"""Why a device's slots find more experts of a random model than their share: who is chosen, and in which order.

    python -m benchmarks.tier_routing [--layers 16] [--tokens 80] [--share 0.19]

A narrow model with random weights and 256 experts a layer answers on the CPU, and what it chose goes through the
slots of a device three times: as it was; with tokens in another order, which leaves only that some experts are chosen
more often; and with as many experts chosen at random.  Then, by layer: the share of a token's experts that the next
one has too, and that of all uses which the most used experts have, as many as there are slots.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from penstock import Engine
from penstock.engine.sampling import Sampling
from penstock.storage.policy_choice import DEFAULT
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.placement import Placement
from penstock.storage.trace import read_trace
from penstock.weights.synth import SynthPlan, write_synth
from penstock.weights.widths import FLASH, Width

TIMES = Times(143e-6, (99e-6, 350e-6, 1.4e-3), call=46e-6)  # of an expert, an H200 beside sixteen cores
Turn = tuple[int, list[int]]  # a layer, and the experts that it needs


def record(layers: int, tokens: int, folder: Path) -> tuple[list[Turn], int]:
    """What was chosen for single tokens, layer by layer, and how many experts there are."""
    base = replace(
        FLASH, hidden=1024, heads=16, q_rank=256, o_groups=4, o_rank=256, index_topk=64, context_length=4096
    )
    ratios = (0, *[4, 128] * layers)[:layers]
    config = Width(base, layers, 1, 256, lambda _: 0).config(ratios, 1, 4096)
    path, trace = folder / "m.gguf", folder / "m.trace"
    write_synth(SynthPlan("routing", config, "q2", 0.0, 1, ()), path)
    with Engine(path, device="cpu", context=2048, trace=trace, draft="off", learn="off") as engine:
        prompt = np.random.default_rng(1).integers(2, config.vocab_size, 16).tolist()
        for _ in engine.generate(prompt, tokens, Sampling(temperature=1.0, seed=1, ignore_eos=True)):
            pass
    found = read_trace(trace)
    experts, bounds = found.header.experts, found.starts
    turns = zip(
        found.blocks.tolist(), found.rows.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
    )
    return [
        (block, (found.keys[a:b] % experts).tolist()) for block, rows, a, b in turns if rows == 1
    ], experts


def hit_rate(turns: Iterable[Turn], slots: int, experts: int) -> float:
    """Of the second half."""
    given, counters = list(turns), TierCounters()
    placement = Placement(
        DEFAULT,
        slots,
        Division(TIMES),
        counters,
        blocks=1 + max(block for block, _ in given),
        experts=experts,
        used=len(given[0][1]),
        passing=128,
    )
    before = (0, 0)
    for number, (block, wanted) in enumerate(given):
        if number == len(given) // 2:
            before = counters.device_hits, counters.device_misses
        placement.turn(block, sorted(set(wanted)), 1)
        placement.settle()
    hits, misses = counters.device_hits - before[0], counters.device_misses - before[1]
    return round(hits / (hits + misses), 3)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tier_routing")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--share", type=float, default=0.19)
    chosen = parser.parse_args()
    layers, rng = chosen.layers, np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        turns, experts = record(layers, chosen.tokens, Path(folder))
    tokens, used = len(turns) // layers, len(turns[0][1])
    slots = int(layers * experts * chosen.share)
    shuffled = [turns[token * layers + layer] for token in rng.permutation(tokens) for layer in range(layers)]
    drawn = [(block, rng.choice(experts, used, replace=False).tolist()) for block, _ in turns]
    rates = {"as it was": turns, "another order": shuffled, "at random": drawn}
    print(json.dumps({"hit_rate": {name: hit_rate(each, slots, experts) for name, each in rates.items()}}))
    for layer in range(0, layers, max(1, layers // 4)):
        sets = [set(turns[token * layers + layer][1]) for token in range(tokens)]
        uses = np.zeros(experts)
        for each in sets:
            uses[list(each)] += 1
        again = np.mean([len(one & other) / used for one, other in pairwise(sets)])
        most = np.sort(uses)[::-1][: int(experts * chosen.share)].sum() / uses.sum()
        print(
            json.dumps({"layer": layer, "again": round(float(again), 3), "most_used": round(float(most), 3)})
        )


if __name__ == "__main__":
    main()

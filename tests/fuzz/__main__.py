"""`python -m tests.fuzz`"""

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from penstock.errors import PenstockError
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import SCRATCH, Target, make_targets

SLOW = 5.0  # seconds that no single input may take


def fuzz(target: Target, count: int, seed: int) -> tuple[int, float]:
    """Runs `count` mutated inputs; returns how many were accepted and the slowest time.  Raises on any surprise."""
    rng = random.Random(seed)
    corpus = list(target.seeds)
    accepted, slowest = 0, 0.0
    for _ in range(count):
        data = mutate(rng.choice(corpus), rng)
        begin = time.perf_counter()
        try:
            target.run(data)
            accepted += 1
            if len(corpus) < 64:  # still valid after the change: a new place to start from
                corpus.append(data)
        except PenstockError:
            pass
        except BaseException:
            failed = Path(tempfile.gettempdir()) / f"fuzz-{target.name}.bin"
            failed.write_bytes(data)
            print(f"{target.name}: the input is kept in {failed}", file=sys.stderr)
            raise
        slowest = max(slowest, time.perf_counter() - begin)
        if slowest > SLOW:
            raise AssertionError(f"{target.name}: an input took {slowest:.1f} s")
    return accepted, slowest


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--count", type=int, default=20_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", help="only this one")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-", dir=SCRATCH))
    try:
        for target in make_targets(folder):
            if options.target in (None, target.name):
                count = int(options.count * (target.share if options.target is None else 1))
                begin = time.perf_counter()
                accepted, slowest = fuzz(target, count, options.seed)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                print(
                    f"{target.name:12} {count:9,} inputs, {accepted:9,} accepted, slowest {slowest * 1e3:7.1f} ms, "
                    f"peak memory {peak:,} MiB, {time.perf_counter() - begin:.0f} s",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

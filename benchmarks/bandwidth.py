"""Streaming read bandwidth of this machine, the pace that decoding from memory cannot beat.

python -m benchmarks.bandwidth [--threads 1,2]
"""

import argparse
import os

from penstock.bench.bandwidth import read_bandwidth


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bandwidth")
    parser.add_argument("--threads", default=f"1,{len(os.sched_getaffinity(0))}", help="e.g. 1,2")
    options = parser.parse_args()
    for threads in dict.fromkeys(int(part) for part in options.threads.split(",")):
        print(f"{threads} thread{'s' if threads > 1 else ''}: {read_bandwidth(threads) / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()

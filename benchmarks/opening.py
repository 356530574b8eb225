"""Time and private memory to open a model.

penstock synth /tmp/flash3.gguf --width flash --layers 3 --ratios 0,4,128 --mix q2
python -m benchmarks.opening /tmp/flash3.gguf
"""

import argparse
import time
from pathlib import Path

import penstock


def memory() -> dict[str, int]:
    """This process's memory in bytes, by kind."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opening")
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    before = memory()["Anonymous"]
    begin = time.perf_counter()
    engine = penstock.Engine(options.model)
    opened = time.perf_counter() - begin
    after = memory()["Anonymous"]
    begin = time.perf_counter()
    _ = engine.tokenizer
    tokenizer = time.perf_counter() - begin
    print(f"file         {options.model.stat().st_size / 2**30:.2f} GiB")
    print(f"open         {opened:.2f} s, {(after - before) / 2**20:.0f} MiB of private memory")
    print(f"tokenizer    {tokenizer:.2f} s, {(memory()['Anonymous'] - after) / 2**20:.0f} MiB more")
    print(f"process      {memory()['Anonymous'] / 2**20:.0f} MiB private in all")


if __name__ == "__main__":
    main()

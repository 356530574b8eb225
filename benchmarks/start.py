"""What it costs to begin: the time from a process's start to its first token, or to the end of a help text, and
memory before weights and sessions.

    python -m benchmarks.start                 the pocket model, best and median of ten starts
    python -m benchmarks.start --install       also: what `pip install .` puts into an empty environment (minutes)

A start is a process of its own that runs `penstock run --raw` until the first byte of an answer arrives.  On a busy
machine the best of several is the one to look at.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.pocket import pocket_path

MIB = 1 << 20

# Prints the resident bytes of an engine that has opened its model and read no weight.
ENGINE = """
import penstock, sys
engine = penstock.Engine(sys.argv[1], load=False)
engine.tokenizer
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("Rss:"):
        print(int(line.split()[1]) * 1024)
"""


SHOWN = (("--version",), ("--help",), ("run", "--help"), ("chat", "--help"), ("serve", "--help"))


@dataclass
class Result:
    first_token_best: float  # seconds
    first_token_median: float
    engine_bytes: int
    shown_best: dict[str, float]  # seconds until a command that only says something has ended
    shown_median: dict[str, float]
    installed_bytes: int | None = None


def first_token(model: Path) -> float:
    """Seconds from starting the command to the first text that it shows."""
    command = [sys.executable, "-m", "penstock", "run", "-m", str(model), "--raw", "-n", "2", "Once upon"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - begin
        process.stdout.read()
    if process.returncode:
        raise SystemExit(f"penstock run ended with {process.returncode}")
    return seconds


def shown(arguments: Sequence[str]) -> float:
    """Seconds that a command takes which only says something."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "penstock", *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def engine_bytes(model: Path) -> int:
    """Resident memory of a process with an engine, before weights and sessions."""
    found = subprocess.run(
        [sys.executable, "-c", ENGINE, str(model)], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


def installed_bytes() -> int:
    """What `pip install .` adds to an empty environment, on disk."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        before = _disk_bytes(Path(folder))
        subprocess.run([f"{folder}/bin/pip", "install", "--quiet", "--no-compile", "."], check=True)
        return _disk_bytes(Path(folder)) - before


def _disk_bytes(folder: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*") if not file.is_symlink())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--model", type=Path, default=pocket_path())
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    seconds = [first_token(options.model) for _ in range(options.rounds)]
    texts = {" ".join(words): [shown(words) for _ in range(options.rounds)] for words in SHOWN}
    result = Result(
        min(seconds),
        statistics.median(seconds),
        engine_bytes(options.model),
        {name: min(found) for name, found in texts.items()},
        {name: statistics.median(found) for name, found in texts.items()},
    )
    if options.install:
        result.installed_bytes = installed_bytes()
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(
        f"first token   {result.first_token_best:.2f} s at best, {result.first_token_median:.2f} s in the median"
    )
    for name, best in result.shown_best.items():
        print(f"{name:13} {best:.2f} s at best, {result.shown_median[name]:.2f} s in the median")
    print(f"engine        {result.engine_bytes / MIB:.0f} MiB resident before weights and sessions")
    if result.installed_bytes is not None:
        print(f"installed     {result.installed_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()

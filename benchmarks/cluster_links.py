"""What the link between two stages costs: decoding over loopback, and between two hosts with a slower link.

    python -m benchmarks.cluster_links                           # loopback, 1 Gb/s with 0.5 ms, 10 Gb/s with 0.1 ms
    python -m benchmarks.cluster_links --links 1:0.5,0.1:5 --repeat 5
    python -m benchmarks.cluster_links --messages                # only what a message takes besides the wire

The hosts are network namespaces of this machine (`benchmarks.network`), so all but loopback needs root.  The model is
a full-width file of four layers, two on each stage, one thread each.  The published model has eleven times as many
layers for the same messages, so its loss is less than a tenth of what is seen here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks import machine
from benchmarks.children import ROOT
from benchmarks.cluster import VOCABULARY, decode, decode_two
from benchmarks.network import HOSTS, Shaped, two_hosts, why_not
from penstock.engine.engine import Engine
from penstock.weights.synth import plan_synth, write_synth

PORT: Final = 7600  # of the head, in a namespace of its own
MESSAGES: Final = 300
LAYERS: Final = 4
PUBLISHED: Final = 43  # layers


def message_seconds(rows: int, width: int = 4 * 4096) -> float:
    """One way, over loopback: streams rounded, encoded, sent, received, decoded."""
    import threading

    from penstock.cluster.boundary import Arriving, as_boundary
    from penstock.cluster.group import CHAIN, Addresses, Group
    from penstock.cluster.message import Message

    stores: list[Addresses] = []
    stores += [Addresses(lambda key, value, to=1 - n: stores[to].learn(key, value), 20.0) for n in (0, 1)]  # type: ignore[misc]
    groups: dict[int, Group] = {}

    def join(rank: int) -> None:
        groups[rank] = Group(stores[rank], rank, 2, "127.0.0.1", 20.0, lambda _: None)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    back, there = threading.Semaphore(0), groups[1].outgoing(0, CHAIN)

    def crossed(message: Message, arriving: Arriving) -> Message:
        streams = arriving(message.arrays["streams"])
        return Message("step", message.fields, {"streams": as_boundary(streams, "bf16")})

    far, near = Arriving(), Arriving()
    groups[1].incoming(0, CHAIN, lambda message: there.send(crossed(message, far)))

    def came(message: Message) -> None:
        crossed(message, near)
        back.release()

    groups[0].incoming(1, CHAIN, came)
    out, found = groups[0].outgoing(1, CHAIN), []
    streams = np.ones((rows, width), np.float32)
    for number in range(MESSAGES):
        begin = time.perf_counter()
        out.send(Message("step", {"number": number}, {"streams": as_boundary(streams, "bf16")}))
        back.acquire()
        found.append((time.perf_counter() - begin) / 2)
    for group in groups.values():
        group.break_up("done")
    return median(found)


def head(model: Path, listen: str, repeat: int) -> None:
    """The first stage, which measures; the worker is somebody else's."""
    options: dict[str, Any] = {
        "threads": 1,
        "memory": None,
        "learn": "off",
        "context": 512,
        "sessions": 2,
        "device": "cpu",
    }
    with Engine(model, cluster=listen, stages=2, layers="0:2", **options) as engine:
        decode(engine)
        found = {
            "decode": median(decode(engine) for _ in range(repeat)),
            "decode, two sessions": median(decode_two(engine) for _ in range(repeat)),
        }
    print(json.dumps(found), flush=True)


def measured(
    model: Path, repeat: int, address: str, here: Sequence[str], there: Sequence[str]
) -> dict[str, float]:
    """here, there: how commands on either host begin."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [*there, sys.executable, "-m", "penstock", "worker", "-m", str(model), "--join", address]
    flags = ["--device", "cpu", "--threads", "1", "--memory", "none", "--once"]
    with subprocess.Popen([*command, *flags], env=environment, stderr=subprocess.DEVNULL) as worker:
        try:
            own = [*here, sys.executable, "-m", "benchmarks.cluster_links", "--head", address]
            arguments = ["--model", str(model), "--repeat", str(repeat)]
            done = subprocess.run(
                [*own, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
        finally:
            if worker.poll() is None:
                worker.terminate()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(model: Path, links: Sequence[Shaped], repeat: int) -> None:
    print(machine.sentence())
    near = measured(model, repeat, f"127.0.0.1:{PORT + os.getpid() % 1000}", [], [])
    print("\n| link | decode | against loopback | two sessions | foretold for 43 layers |")
    print("|---|---:|---:|---:|---:|")
    _row("loopback", near, near, "")
    for link in links:
        with two_hosts(link) as (first, second):
            far = measured(model, repeat, f"{HOSTS[0]}:{PORT}", first, second)
        lost = 2 * link.milliseconds / 1e3 + 2 * 4 * 4096 / (link.gigabits * 1e9 / 8)
        whole = PUBLISHED / LAYERS / near["decode"]
        _row(link.name, far, near, f"−{lost / (whole + lost):.1%}")


def _row(name: str, found: dict[str, float], near: dict[str, float], foretold: str) -> None:
    against = f"{found['decode'] / near['decode'] - 1:+.1%}"
    two = found["decode, two sessions"]
    print(f"| {name} | {found['decode']:.2f} | {against} | {two:.2f} | {foretold} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--links", default="1:0.5,10:0.1", help="Gb/s:milliseconds one way, comma-separated")
    add("--repeat", type=int, default=3)
    add("--model", type=Path, help="a GGUF file with four layers (default: made for it)")
    add("--messages", action="store_true", help="only what a message takes over loopback")
    add("--head", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.head:
        head(given.model, given.head, given.repeat)
        return 0
    if given.messages:
        for rows in (1, 256):
            print(
                f"{rows} rows of the published width: {1e3 * message_seconds(rows):.3f} ms one way over loopback"
            )
        return 0
    if (why := why_not()) is not None:
        print(f"cluster_links: {why}", file=sys.stderr)
        return 1
    links = [Shaped(*map(float, each.split(":"))) for each in given.links.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        model = given.model
        if model is None:
            model = Path(folder, "flash4.gguf")
            write_synth(plan_synth(width="flash", layers=LAYERS, vocab=VOCABULARY, mix="q2"), model)
        compare(model, links, given.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())

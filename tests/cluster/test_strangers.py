"""Whoever finds the ports on which stages listen for each other: what he says there changes nothing."""

import os
import random
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from tests.cluster.machines import cluster

LISTENING = "0A"  # as /proc/net/tcp says it
IDS = [*range(100, 130)]


def listening() -> list[int]:
    """Ports on which this process listens."""
    own = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:
            continue  # the one with which the folder was read
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, address, _, state, *_, inode = line.split()[:10]
        if state == LISTENING and f"socket:[{inode}]" in own:
            found.append(int(address.rpartition(":")[2], 16))
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds ports as Linux shows them")
def test_garbage_between_the_stages_changes_no_answer() -> None:
    rng = random.Random(0)
    before = set(listening())
    with Engine(pocket_path(), context=128, threads=1, memory=None, learn="off") as engine:
        expected = engine.session().feed(IDS)
    with cluster(pocket_path(), 2, context=128) as engine:
        assert engine.machines is not None
        ports = set(listening()) - before - {engine.machines.head.address[1]}
        assert len(ports) == 2  # of gloo, one for each stage
        for port in ports:
            for size in (0, 1, 8, 8, 24, 100, 5000):
                with socket.create_connection(("127.0.0.1", port), 30) as stranger:
                    stranger.sendall(rng.choice((bytes, rng.randbytes))(size))
        assert np.array_equal(engine.session().feed(IDS), expected)  # type: ignore[arg-type]

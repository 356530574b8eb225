"""Whether a pack is worth its space."""

import os
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ReadError
from penstock.storage import pack_speed
from penstock.storage.pack import find_source
from penstock.storage.pack_speed import measure, reads_per_expert
from penstock.storage.read_speed import experts_at_random
from penstock.storage.reader import Reader
from penstock.storage.source import ExpertSource
from penstock.weights.opening import open_checkpoint
from tests.storage.packs import copied, make_model, write_in_one_piece


def test_reads_that_an_expert_takes(packed: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(packed)
    assert reads_per_expert(ExpertSource(checkpoint)) == 3
    assert reads_per_expert(find_source(checkpoint, "auto")) == 1
    official = open_checkpoint(make_model("official", tmp_path))
    assert reads_per_expert(ExpertSource(official)) == 6  # scales in other shards than their matrices
    assert reads_per_expert(ExpertSource(open_checkpoint(write_in_one_piece(tmp_path / "one")))) == 1


def test_both_ways_read_the_same_amount(packed: Path) -> None:
    source = ExpertSource(open_checkpoint(packed))
    size = packed.stat().st_size
    ways = zip(experts_at_random(source), pack_speed._in_one_piece(source), strict=False)
    for apart, together in islice(ways, 200):
        (stretch,) = together.bundle.stretches
        assert apart.nbytes == together.nbytes == stretch.needed
        assert stretch.offset + stretch.needed <= size


def test_the_gain_is_that_of_neighbouring_rounds(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece is a tenth faster in each round, while the disk gets slower all the time."""
    rounds = count()

    def speed(_reader: Reader, _buffers: object, requests: Any, seconds: float) -> float:
        pieces = len(next(requests).bundle.stretches)
        return 0.0 if seconds == 0 else (1.1 if pieces == 1 else 1.0) * 0.5 ** (next(rounds) // 2)

    monkeypatch.setattr(pack_speed, "stream", speed)
    speeds = measure(ExpertSource(open_checkpoint(packed)))
    assert speeds.gain == pytest.approx(0.1)
    assert speeds.together == pytest.approx(1.1 * speeds.apart)


def test_measuring_a_file_that_is_cut_short(packed: Path, tmp_path: Path) -> None:
    model, _ = copied(packed, tmp_path)
    source = ExpertSource(open_checkpoint(model))
    assert measure(source, seconds=0, rounds=1).apart > 0
    os.truncate(model, 1000)
    with pytest.raises(ReadError, match=r"q2\.gguf"):
        measure(source, seconds=0, rounds=1)

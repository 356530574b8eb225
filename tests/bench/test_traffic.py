"""Bytes that a token reads, counted from the file."""

from pathlib import Path

import pytest

from penstock.bench.traffic import Part, state_bytes, weight_bytes
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth


def test_weights(model: Path) -> None:
    """All matrices once, one row of each table, and of the routed experts those that are chosen."""
    opened = open_checkpoint(model)
    found = weight_bytes(opened)
    sizes = {name: info.nbytes for name, info in opened.index.items()}
    config = opened.config
    routed = sum(size for name, size in sizes.items() if "_exps." in name)
    tables = sum(size for name, size in sizes.items() if "token_embd" in name or "tid2eid" in name)
    rest = sum(sizes.values()) - routed - tables
    expected = rest + routed * config.experts_used / config.experts + tables / config.vocab_size
    assert sum(found.values()) == pytest.approx(expected, abs=len(sizes))
    assert found[Part.HEAD] == sizes["output.weight"]
    shared = sum(size for name, size in sizes.items() if "_shexp." in name)
    chosen = routed * config.experts_used / config.experts
    assert found[Part.EXPERTS] == pytest.approx(shared + chosen, abs=9)
    assert found[Part.DRAFT] == 0


def test_more_experts_read_more(tmp_path: Path, model: Path) -> None:
    synth(tmp_path / "q8.gguf", width="tiny", layers=3, ratios=(0, 4, 128), mix="q8_0")
    small, large = weight_bytes(open_checkpoint(model)), weight_bytes(open_checkpoint(tmp_path / "q8.gguf"))
    assert large[Part.EXPERTS] > small[Part.EXPERTS]
    assert large[Part.ATTENTION] == small[Part.ATTENTION]


def test_state(model: Path) -> None:
    """At position 1,023: three windows of 32 rows, 256 index rows of which 16 are picked, 8 heavy rows."""
    config = open_checkpoint(model).config
    values = 3 * 32 * 128 + 256 * 64 + 16 * 128 + 8 * 128
    assert state_bytes(config, 1023, value_bytes=2) == 2 * values
    assert state_bytes(config, 0, value_bytes=4) == 4 * 3 * 128

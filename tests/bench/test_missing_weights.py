"""What weights that have to be read cost is measured on layers that read them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.backend import open_backend
from penstock.bench import missing_weights
from penstock.bench.imagined_layers import ImaginedLayers
from penstock.bench.missing_weights import Handling, _streamed_blocks, _Turns
from penstock.storage.dense import LoadedDense
from penstock.storage.reader import Reader
from penstock.storage.source import ExpertSource
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth


@pytest.fixture
def source(tmp_path: Path) -> ExpertSource:
    synth(tmp_path / "m.gguf", width="tiny", mix="mxfp4")
    return ExpertSource(open_checkpoint(tmp_path / "m.gguf"))


@pytest.fixture
def layers(source: ExpertSource, monkeypatch: pytest.MonkeyPatch) -> ImaginedLayers:
    monkeypatch.setattr(missing_weights, "PATIENCE", 0.0)
    return ImaginedLayers(source.checkpoint, 1, open_backend("cpu", 1))


@pytest.fixture
def reader() -> Iterator[Reader]:
    with closing(Reader()) as reader:
        yield reader


@pytest.mark.parametrize(("rows", "missing"), [(1, 0), (1, 1), (1, 2), (48, 0), (48, 2)])
def test_layers_read_as_many_experts_as_they_are_to(
    layers: ImaginedLayers, source: ExpertSource, reader: Reader, rows: int, missing: int
) -> None:
    turns = _Turns(layers, source, reader, rows, 2, missing)
    turns.seconds()
    before, begun = turns.store.counters.totals()["misses"], turns.turn
    turns.seconds()
    assert turns.turn > begun
    assert turns.store.counters.totals()["misses"] - before == missing * (turns.turn - begun)


def test_what_a_layer_only_waits_for_does_not_count(
    layers: ImaginedLayers, source: ExpertSource, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that goes on only where it is told to."""
    clock, run = [0.0], Reader.wait_any

    def waits(self: Reader, *args: object) -> object:
        clock[0] += 7.0
        return run(self, *args)  # type: ignore[arg-type]

    def takes(self: object, *args: object) -> object:
        clock[0] += 0.5
        return forward(self, *args)

    kind = type(layers.model.layers[0])
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", takes)
    monkeypatch.setattr(Reader, "wait_any", waits)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    dense: LoadedDense = _streamed_blocks(source.checkpoint, layers.backend, reader)
    assert _Turns(layers, source, reader, 1, 2, 0, dense).seconds().layer == pytest.approx(0.5)
    assert dense.stall_seconds > 0


def test_every_number_is_found(layers: ImaginedLayers, source: ExpertSource) -> None:
    found = missing_weights.measure_handling(layers, source)
    assert all(0 <= seconds < 60 for seconds in found)
    assert found.guess > 0


def test_many_take_longer_each_where_there_is_the_least_room(
    layers: ImaginedLayers, source: ExpertSource, reader: Reader
) -> None:
    turns = _Turns(layers, source, reader, 48, 4, 4, slots=2)
    turns.seconds()
    assert turns.store.cache.capacity == 2 * max(source.slot_bytes)
    assert turns.store.counters.totals()["misses"] == 4 * turns.turn
    found = Handling(many=1.0, tight=3.0)
    assert [found.many_with(slots, 12) for slots in (2, 12, 18, 24, 99)] == [3.0, 3.0, 2.0, 1.0, 1.0]

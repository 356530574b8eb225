"""A sweep measures what it says, and its reports hold together."""

import csv
import io
import json
import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

import penstock
from penstock.backend.device import KernelTime
from penstock.bench.bandwidth import read_bandwidth
from penstock.bench.plot import draw, short
from penstock.bench.report import Report, summarise
from penstock.bench.sweep import Timing, Trial, _on_device, sweep, sweep_tokens
from penstock.bench.traffic import Part
from penstock.errors import OptionError

FRONTIERS, DECODE, REPEAT = [40, 100], 3, 2


@pytest.fixture(scope="module")
def progress() -> list[int]:
    return []


@pytest.fixture(scope="module")
def trials(small_engine: penstock.Engine, progress: list[int]) -> list[Trial]:
    return list(sweep(small_engine, FRONTIERS, DECODE, REPEAT, progress=progress.append))


@pytest.fixture(scope="module")
def report(small_engine: penstock.Engine, trials: list[Trial]) -> Report:
    return summarise(small_engine, trials, 10e9, ["a <note> & more"])


def test_each_frontier_goes_on_from_the_one_before(trials: list[Trial]) -> None:
    assert [trial.context for trial in trials] == FRONTIERS * REPEAT
    assert [trial.prefill.tokens for trial in trials] == [40, 60] * REPEAT
    assert {trial.decode.tokens for trial in trials} == {DECODE}


def test_parts_add_up(trials: list[Trial]) -> None:
    for timing in [timing for trial in trials for timing in (trial.prefill, trial.decode)]:
        assert math.isclose(sum(timing.parts.values()), timing.seconds)
        assert all(seconds > 0 for seconds in timing.parts.values())
        assert set(timing.parts) == set(Part) - {Part.DRAFT}


def test_progress_reaches_what_was_announced(trials: list[Trial], progress: list[int]) -> None:
    assert trials
    assert sum(progress) == sweep_tokens(FRONTIERS, DECODE, REPEAT)


def test_a_sweep_needs_room_to_take_back(small_engine: penstock.Engine) -> None:
    with pytest.raises(OptionError, match="max_rewind is 64, expected at least 65"):
        next(sweep(small_engine, [10], 65))


def test_a_report_takes_the_middle(report: Report, trials: list[Trial]) -> None:
    for point in report.points:
        speeds = sorted(trial.decode.per_second for trial in trials if trial.context == point.context)
        assert point.decode_range == (speeds[0], speeds[-1])
        assert point.decode.per_second in speeds
    assert report.repeat == REPEAT
    assert report.points[0].bytes_per_token < report.points[1].bytes_per_token


def test_json(report: Report) -> None:
    found = json.loads(json.dumps(report.as_dict()))
    assert [point["context"] for point in found["points"]] == FRONTIERS
    for point in found["points"]:
        decode = point["decode"]
        assert math.isclose(sum(decode["parts_s"].values()), decode["seconds"])
        assert math.isclose(point["floor_s"], point["bytes_per_token"] / found["bandwidth_bytes_per_s"])
        assert math.isclose(point["of_floor"], point["floor_s"] * decode["per_second"])
    assert found["notes"] == ["a <note> & more"]


def test_csv(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(report.as_csv())))
    assert [int(row["context"]) for row in rows] == FRONTIERS
    for row in rows:
        parts = [
            float(value) for name, value in row.items() if name.startswith("decode_") and name.endswith("_ms")
        ]
        assert len(parts) == len(report.parts)
        assert sum(parts) == pytest.approx(1e3 / float(row["decode_per_s"]), rel=1e-2)


def test_plot_is_valid_and_names_every_part(report: Report) -> None:
    root = ElementTree.fromstring(draw(report))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {part.value for part in report.parts} | {"prefill", "decode", "40", "100"} <= texts


def test_plot_of_a_single_frontier(small_engine: penstock.Engine, trials: list[Trial]) -> None:
    ElementTree.fromstring(draw(summarise(small_engine, trials[:1], 10e9, [])))


@pytest.mark.parametrize(
    ("count", "expected"), [(512, "512"), (2048, "2k"), (1 << 20, "1m"), (1500, "1,500")]
)
def test_short_numbers(count: int, expected: str) -> None:
    assert short(count) == expected


def test_bandwidth() -> None:
    assert read_bandwidth(threads=2, buffer=1 << 24, rounds=1) > 0


class Device:
    """Runs work and says that it took a second."""

    def profile(self, work: Callable[[], object]) -> list[KernelTime]:
        work()
        return [KernelTime("dense", 16, 1.0)]


def test_on_a_device_tokens_are_generated_and_taken_back(small_engine: penstock.Engine) -> None:
    session, told = small_engine.session(), list[int]()
    session.feed(list(range(10)))
    prefill = Timing(10, 1.0, {})
    trial = _on_device(Device(), session, 5, 6, prefill, told.append)  # type: ignore[arg-type]
    assert session.position == 10
    assert sum(told) == trial.decode.tokens == 6
    assert trial.kernels == (KernelTime("dense", 3, 1 / 6),)

"""What is expected of a run follows from what its parts take."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.backend import open_backend
from penstock.bench import expectation, expected
from penstock.bench.costs import Costs, Curve, LayerCosts
from penstock.bench.expectation import expect
from penstock.bench.expected import expect_here
from penstock.bench.expected_run import Phase
from penstock.bench.missing_weights import Handling
from penstock.bench.new_memory import Filling, NewMemory
from penstock.bench.routing import DrawnRouting
from penstock.bench.token_overhead import token_overhead
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.engine.sampler import Sampler
from penstock.engine.steps import Generation
from penstock.machine import pages
from penstock.machine.measured_once import MeasuredOnce
from penstock.machine.notes import notes_path, recall
from penstock.model.deepseek_v4.model import DeepSeekV4
from penstock.storage import read_speed
from penstock.storage.page_cache import Absent
from penstock.storage.plan import Plan
from penstock.storage.read_speed import ReadSpeed
from penstock.storage.source import ExpertSource
from penstock.storage.usage import Usage
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.imagined import imagine
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import plan_synth, stored_type, synth

GIB = 1 << 30
MS = 1e-3
FREE = Handling(*(0.0 for _ in Handling._fields))
FLAT = Curve((1, 64), (MS, 64 * MS))  # a millisecond for every row


@pytest.fixture(autouse=True)
def one_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the usual length: more would only take longer."""
    monkeypatch.setattr(expectation, "OTHER_PROMPTS", ())
    monkeypatch.setattr(expectation, "ANSWER", 16)


def planned(model: Checkpoint, budget: int | None) -> Plan:
    return make_engine_plan(model, EngineOptions(memory=budget), open_backend("cpu", 1), None)[0]


def costs(model: Checkpoint) -> Costs:
    layer = LayerCosts(FLAT, 0.0, Curve((1, 64), (0.0, 0.0)), FLAT, 0.0, 0.0)
    return Costs((layer,) * model.config.layer_count, 2 * MS, Curve((1, 64), (0.0, 0.0)))


def test_an_imagined_model_is_planned_like_one_on_disk(tmp_path: Path) -> None:
    plan = plan_synth(width="tiny", mix="q2")
    synth(tmp_path / "m.gguf", width="tiny", mix="q2")
    real = open_checkpoint(tmp_path / "m.gguf")
    imagined = imagine(plan.config, lambda each: stored_type(each, "q2"))
    for budget in (None, planned(real, None).smallest + (1 << 20)):
        found, expected = planned(imagined, budget).as_dict(), planned(real, budget).as_dict()
        for name in ("experts_total", "expert_bytes", "read_by_token", "mode"):
            assert found[name] == expected[name]
        assert found["total"] == pytest.approx(expected["total"], rel=0.01)


def test_all_in_memory(flash: Checkpoint) -> None:
    found = expect(flash, planned(flash, 200 * GIB), costs(flash), ReadSpeed(1e9, 0.0))
    per_token = (1 + flash.config.experts_used) * flash.config.layer_count * MS + 2 * MS
    assert found.steady.seconds / found.steady.tokens == pytest.approx(per_token)
    assert found.first.waiting == found.first.disk_bytes == 0


def test_a_slow_disk_sets_the_pace(flash: Checkpoint) -> None:
    disk = ReadSpeed(1e8, 0.0)
    found = expect(flash, planned(flash, 16 * GIB), costs(flash), disk, handling=FREE).steady
    assert found.seconds == pytest.approx(found.disk_bytes / disk.bytes_per_second, rel=0.2)
    assert found.waiting > 0.5 * found.seconds
    assert 0.05 < found.hit_rate < 0.2


def test_missing_experts_cost_the_processors_time_too(flash: Checkpoint) -> None:
    """Where the disk is quick, nothing else is longer; hardly any layer has all of its experts."""
    plan, disk = replace(planned(flash, 16 * GIB), ahead=0), ReadSpeed(1e12, 0.0)
    handlings = FREE, FREE._replace(first=MS), FREE._replace(asking=MS / 2, first=MS, further=MS)
    found, one, each = (
        expect(flash, plan, costs(flash), disk, handling=handling).steady for handling in handlings
    )
    asked = found.tokens * flash.config.layer_count
    assert one.seconds - found.seconds == pytest.approx(asked * MS, rel=0.05)
    misses = (1 - found.hit_rate) * asked * flash.config.experts_used
    assert each.seconds - found.seconds == pytest.approx(misses * MS, rel=0.05)


def test_more_memory_is_never_slower(flash: Checkpoint) -> None:
    speeds = [
        expect(flash, planned(flash, gib * GIB), costs(flash), ReadSpeed(2e9, 1e-4)).steady.per_second
        for gib in (4, 16, 48, 200)
    ]
    assert speeds == sorted(speeds)


def test_what_was_used_most_is_hit_more_often(flash: Checkpoint) -> None:
    config = flash.config
    counts = np.tile(1e5 / np.arange(1, config.experts + 1), (config.layer_count, 1)).astype(np.float32)
    plan, disk = planned(flash, 16 * GIB), ReadSpeed(2e9, 1e-4)
    uniform = expect(flash, plan, costs(flash), disk)
    learned = expect(flash, plan, costs(flash), disk, usage=Usage(counts))
    assert learned.steady.hit_rate > 2 * uniform.steady.hit_rate
    assert learned.first.hit_rate > uniform.first.hit_rate  # from the first token on


def test_right_guesses_save_waiting(flash: Checkpoint) -> None:
    plan, disk = planned(flash, 16 * GIB), ReadSpeed(3e9, 1e-3)
    counts = np.ones((flash.config.layer_count, flash.config.experts), np.float32)
    none, many = (Usage(counts, 1000.0, right) for right in (0.0, 900.0))
    waits = [expect(flash, plan, costs(flash), disk, usage=each).steady.waiting for each in (none, many)]
    assert waits[1] < 0.85 * waits[0]


def test_what_the_disk_has_not_read_for_a_while_is_slow_once(flash: Checkpoint) -> None:
    """A prompt reads all experts; the answer after it finds them remembered, as far as that goes."""
    plan, costs_, disk = planned(flash, 16 * GIB), costs(flash), ReadSpeed(2e9, 1e-4)
    usual = expect(flash, plan, costs_, disk)
    cold = expect(flash, plan, costs_, disk._replace(cold=1e-8))
    longer = plan.experts_total * 1e-8
    assert 0.8 * longer < cold.prefill.seconds - usual.prefill.seconds <= longer  # some while it computes
    assert cold.first.seconds == pytest.approx(usual.first.seconds, rel=0.01)
    assert cold.steady.seconds == pytest.approx(usual.steady.seconds)
    half = expect(flash, plan, costs_, disk._replace(cold=1e-8), remembered=plan.experts_total / 2).steady
    longer = half.disk_bytes / 2 * 1e-8
    assert half.seconds == pytest.approx(cold.steady.seconds + longer, rel=0.1)


def test_an_answer_after_a_short_prompt_fills_the_cache_itself(
    flash: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectation, "OTHER_PROMPTS", (16,))
    found = expect(flash, planned(flash, 64 * GIB), costs(flash), ReadSpeed(1e9, 1e-4))
    assert found.answers[512] == found.first
    assert found.answers[16].hit_rate < 0.7 * found.first.hit_rate
    assert found.answers[16].per_second < 0.8 * found.first.per_second


def test_finding_experts_in_the_cache_takes_time(flash: Checkpoint) -> None:
    """Every layer of every token, whether anything is missing or not."""
    plan, disk = planned(flash, 32 * GIB), ReadSpeed(1e12, 0.0)
    quick, slow = (
        expect(flash, plan, costs(flash), disk, handling=FREE._replace(hits=s)).steady for s in (0.0, MS)
    )
    assert slow.seconds - quick.seconds == pytest.approx(slow.tokens * flash.config.layer_count * MS)


def test_an_engine_begins_once(flash: Checkpoint) -> None:
    plan, disk, known = planned(flash, 16 * GIB), ReadSpeed(1e9, 0.0), costs(flash)
    usual, late = (expect(flash, plan, known._replace(start=s), disk) for s in (0.0, 9.0))
    assert late.prefill.seconds == pytest.approx(usual.prefill.seconds + 9.0)
    assert late.first.seconds == pytest.approx(usual.first.seconds)


def test_a_use_that_answers_do_not_repeat_is_not_expected_of_them(flash: Checkpoint) -> None:
    once = 1e5 / np.arange(1, flash.config.experts + 1)
    counts = np.tile(once, (flash.config.layer_count, 1)).astype(np.float32)
    plan, disk = planned(flash, 16 * GIB), ReadSpeed(2e9, 1e-4)
    uniform = expect(flash, plan, costs(flash), disk).steady.hit_rate
    never, always = (
        expect(flash, plan, costs(flash), disk, usage=Usage(counts, 0.0, 0.0, 1e4, 9e3, found))
        for found in (5e3, 9e3)
    )
    assert never.steady.hit_rate == pytest.approx(uniform, abs=0.02)
    assert always.steady.hit_rate > 3 * uniform


def test_a_file_that_is_not_in_memory_comes_while_the_first_prompt_is_read() -> None:
    warm = Phase(512, 5.0, 1.0, 0.0, 1.0)
    assert expected._with_the_file(warm, Absent()) == warm
    assert expected._with_the_file(warm, Absent(1, seconds=4.0)) == warm
    # The processors are at work for it.
    assert expected._with_the_file(warm, Absent(1, seconds=4.0, working=1.5)).seconds == 6.5
    slow = expected._with_the_file(warm, Absent(1, seconds=9.0, working=1.5))
    assert (slow.seconds, slow.waiting) == (9.0, 5.0)


def test_memory_that_is_filled_for_the_first_time_takes_time(flash: Checkpoint) -> None:
    plan, disk = planned(flash, 16 * GIB), ReadSpeed(2e9, 1e-4)
    old, new = (expect(flash, plan, costs(flash), disk, fresh=s) for s in (0.0, 1e-9))
    assert new.prefill.seconds > old.prefill.seconds + plan.work * 1e-9
    assert new.steady.seconds == pytest.approx(old.steady.seconds)


def test_new_memory_is_slow_once_more_when_it_is_read_to_again(flash: Checkpoint) -> None:
    plan, disk = planned(flash, 32 * GIB), ReadSpeed(2e9, 1e-4)
    usual, slow = (expect(flash, plan, costs(flash), disk, young=s) for s in (0.0, 5e-9))
    longer = sum(phase.waiting for phase in (slow.prefill, slow.first))
    longer -= sum(phase.waiting for phase in (usual.prefill, usual.first))
    assert 0.2 < longer / (plan.experts_held * 5e-9) <= 1  # at most once for each slot
    assert slow.steady.seconds == usual.steady.seconds


def test_a_token_takes_what_the_engine_does_besides(flash: Checkpoint) -> None:
    plan, disk, known = planned(flash, 200 * GIB), ReadSpeed(1e9, 0.0), costs(flash)
    without, with_it = (expect(flash, plan, known._replace(token=s), disk) for s in (0.0, MS))
    assert with_it.steady.seconds == pytest.approx(without.steady.seconds + with_it.steady.tokens * MS)
    assert with_it.prefill.seconds == without.prefill.seconds


def test_chance_does_not_show_in_a_model_of_one_layer() -> None:
    config = plan_synth(width="flash", mix="q8_0", ratios=(4,), hash_layers=0, vocab=1024).config
    model = imagine(config, lambda each: stored_type(each, "q8_0"))
    plan = planned(model, 4 * GIB)
    found = expect(model, plan, costs(model), ReadSpeed(3e9, 1e-4))
    assert found.first.hit_rate == pytest.approx(plan.hit_rate(), abs=0.02)
    assert found.steady.hit_rate == pytest.approx(plan.hit_rate(), abs=0.02)


def test_the_overhead_of_a_token_is_what_is_neither_model_nor_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on only where it is told to."""
    clock = [0.0]

    def takes(owner: type, name: str, seconds: float) -> None:
        function = getattr(owner, name)

        def slower(*args: object, **options: object) -> object:
            clock[0] += seconds
            return function(*args, **options)

        monkeypatch.setattr(owner, name, slower)

    takes(DeepSeekV4, "forward", 5.0)
    takes(DeepSeekV4, "logits", 3.0)
    takes(Sampler, "sample", 2.0)
    takes(Generation, "next", 1.0)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert token_overhead()[0] == 1.0


def test_reading_to_new_memory_is_compared_with_reading_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth(tmp_path / "m.gguf", width="tiny", mix="mxfp4")
    source, speeds = ExpertSource(open_checkpoint(tmp_path / "m.gguf")), iter([1.0, 2.0, 4.0])
    monkeypatch.setattr(read_speed, "stream", lambda *_: next(speeds))
    memory = np.frombuffer(pages.reserve(1 << 20, large=False), np.uint8)
    assert read_speed.slower_at_first(source, memory[:16]) == 0.0
    assert read_speed.slower_at_first(source, memory) == 0.25


def test_reading_for_the_first_time_is_compared_with_reading_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that remembers: it gives 1 byte in a second, and 4 of what it has read."""
    synth(tmp_path / "m.gguf", width="tiny", mix="mxfp4")
    source = ExpertSource(open_checkpoint(tmp_path / "m.gguf"))
    remembered: set[int] = set()

    def stream(_: object, buffers: list[object], requests: Iterator[read_speed.Request], __: float) -> float:
        taken = [id(request.bundle) for request, _ in zip(requests, buffers, strict=False)]
        known = remembered.issuperset(taken)
        remembered.update(taken)
        return 4.0 if known else 1.0

    monkeypatch.setattr(read_speed, "stream", stream)
    monkeypatch.setattr(read_speed, "ROUNDS", 3)
    monkeypatch.setattr(read_speed, "IN_FLIGHT", 1)
    monkeypatch.setattr(read_speed, "PAUSE", 0.0)
    bundles = [source.bundle(key) for key in range(len(source.blocks) * source.experts)]
    monkeypatch.setattr(ExpertSource, "bundle", lambda _, key: bundles[key])
    by_byte, _, cold = read_speed.measure_reads(source, open_backend("cpu", 1))
    assert (by_byte, cold) == (0.25, 0.75)


def test_rows_of_a_prompt_share_experts() -> None:
    routing = DrawnRouting(np.ones((1, 256)), 6)
    assert len(routing.draw(0, 1)) == 6
    expected = 256 * (1 - (1 - 6 / 256) ** 64)
    assert np.mean([len(routing.draw(0, 64)) for _ in range(50)]) == pytest.approx(expected, rel=0.05)


def test_answers_may_ask_for_others_than_prompts() -> None:
    first, last = np.repeat([[1.0, 0.0]], 8, axis=1) + 1e-9, np.repeat([[0.0, 1.0]], 8, axis=1) + 1e-9
    routing = DrawnRouting(first, 6, answers=last)
    assert max(routing.draw(0, 64)) < 8 <= min(routing.draw(0, 1))


def test_costs_are_measured_on_layers_like_the_models_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model is measured in a moment; the expectation is of the engine's own plan."""
    monkeypatch.setattr("penstock.bench.imagined_layers.PATIENCE", 0.0)
    monkeypatch.setattr("penstock.bench.expected.read_bandwidth", lambda *_: 1e10)
    monkeypatch.setattr("penstock.storage.read_speed.SECONDS", 0.001)
    monkeypatch.setattr("penstock.storage.read_speed.PAUSE", 0.0)
    synth(tmp_path / "m.gguf", width="tiny", mix="mxfp4")
    with Engine(tmp_path / "m.gguf", memory=None, load=False) as engine:
        said: list[str] = []
        found = expect_here(engine.checkpoint, engine.plan, engine.backend, say=said.append)
        assert len(said) == 1
        assert len(found.costs.layers) == engine.config.layer_count
        assert 0 < found.steady.per_second < 1e6
        assert sum(found.token_seconds.values()) == pytest.approx(found.steady.seconds / found.steady.tokens)


# ── what is noted ─────────────────────────────────────────────────────────────────────────────────────────────────


def measured(
    monkeypatch: pytest.MonkeyPatch, *, busy: bool, again: bool = False, found: float = 1.0
) -> float:
    """A number of a machine, by a process that has measured nothing yet."""
    monkeypatch.setattr("penstock.machine.measured_once._HERE", {})
    monkeypatch.setattr("penstock.machine.measured_once._Others.share", lambda _: 0.9 if busy else 0.0)
    return MeasuredOnce("test", "machine", again, lambda _: None).numbers("x", 1, lambda: [found])[0]


def test_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, busy=False, found=1.0) == 1.0
    assert measured(monkeypatch, busy=False, found=2.0) == 1.0
    assert measured(monkeypatch, busy=False, found=2.0, again=True) == 2.0


@pytest.mark.parametrize(("holds", "right"), [(True, 1.0), (False, 2.0)])
def test_what_no_longer_holds_is_measured_anew(
    monkeypatch: pytest.MonkeyPatch, holds: bool, right: float
) -> None:
    measured(monkeypatch, busy=False, found=1.0)
    monkeypatch.setattr("penstock.machine.measured_once._HERE", {})
    notes = MeasuredOnce("test", "machine", False, lambda _: None)
    assert notes.numbers("x", 1, lambda: [2.0], holds=lambda _: holds) == [right]


def test_of_several_rounds_the_middle_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.machine.measured_once._HERE", {})
    taken = iter([[5.0], [1.0], [2.0]])
    notes = MeasuredOnce("test", "machine", False, lambda _: None)
    assert notes.numbers("x", 1, lambda: next(taken), rounds=3) == [2.0]


def test_a_busy_machine_is_measured_again_and_the_faster_number_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [measured(monkeypatch, busy=True, found=x) for x in (3.0, 5.0, 2.0)] == [3.0, 3.0, 2.0]
    assert measured(monkeypatch, busy=False, found=1.0) == 1.0
    assert measured(monkeypatch, busy=False, found=0.5) == 1.0


@pytest.mark.parametrize(
    "text", ["", "[]", '{"machine x": 3}', '{"machine x": {"numbers": [-1.0], "busy_trials": 0}}']
)
def test_damaged_notes_are_measured_anew(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    notes_path("test").parent.mkdir(parents=True, exist_ok=True)
    notes_path("test").write_text(text)
    assert measured(monkeypatch, busy=False) == 1.0
    assert recall("test")["machine x"] == {"numbers": [1.0], "busy_trials": 0}


def test_speed_of_a_plan_that_holds_more(flash: Checkpoint) -> None:
    """The same plan with experts taken from it is slower."""
    plan = planned(flash, 32 * GIB)
    less = replace(plan, experts_held=plan.experts_held // 4)
    speeds = [
        expect(flash, each, costs(flash), ReadSpeed(1e9, 1e-4)).steady.per_second for each in (less, plan)
    ]
    assert speeds[0] < speeds[1]


def test_guesses_are_tried_before_they_are_given_up(flash: Checkpoint) -> None:
    """At first those that turn out wrong are read too."""
    plan, disk = planned(flash, 32 * GIB), ReadSpeed(1e9, 1e-4)
    found = expect(flash, plan, costs(flash), disk)
    assert (
        found.first.disk_bytes
        > (1 - found.first.hit_rate) / (1 - found.steady.hit_rate) * found.steady.disk_bytes
    )


def test_a_prompt_is_expected_between_quick_and_slow_memory(flash: Checkpoint) -> None:
    plan, disk = planned(flash, 32 * GIB), ReadSpeed(1e9, 1e-4)
    usual, quick, slow = (
        expect(flash, plan, costs(flash), disk, fresh=seconds).prefill for seconds in (1e-9, 1e-10, 2e-9)
    )
    fewest, most = expected._between(usual, plan, NewMemory(Filling(1e-9, 1e-10, 2e-9)))
    assert fewest < usual.per_second < most
    assert fewest == pytest.approx(slow.per_second, rel=0.05)
    assert most == pytest.approx(quick.per_second, rel=0.05)

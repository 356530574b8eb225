"""What is expected of several machines follows from what each stage and each message takes."""

from dataclasses import replace

import pytest

from penstock.backend import open_backend
from penstock.bench import cluster, expectation
from penstock.bench.cluster import ClusterExpectation, Link, Planned, costs_of, expect_cluster, parse_machines
from penstock.bench.expert_workers import Helped, expect_helped
from penstock.engine.options import EngineOptions
from penstock.errors import BudgetError, ClusterError, OptionError
from penstock.storage.read_speed import ReadSpeed
from penstock.weights.checkpoint import Checkpoint
from tests.bench.test_expectation import GIB, MS, costs

DISK = ReadSpeed(3e9, 1e-4)
NEAR = Link(1e18, 0.0, 0.0, 0.0)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer takes as long as the tests of one machine say."""
    monkeypatch.setattr(cluster, "kernel_costs", lambda model, *_: costs(model))
    monkeypatch.setattr(expectation, "OTHER_PROMPTS", ())
    monkeypatch.setattr(expectation, "ANSWER", 4)


def expected(
    model: Checkpoint, *machines: Planned, link: Link = NEAR, **options: object
) -> ClusterExpectation:
    chosen = EngineOptions(threads=1, context=1024, prefill_chunk=64, **options)  # type: ignore[arg-type]
    return expect_cluster(model, chosen, open_backend("cpu", 1), machines, link, disk=DISK)


def test_one_request_takes_as_long_on_stages_as_on_one_machine_with_enough_memory(flash: Checkpoint) -> None:
    one, three = (expected(flash, *[Planned(200 * GIB)] * count) for count in (1, 3))
    assert three.alone == pytest.approx(one.alone, rel=1e-6)
    assert one.alone == pytest.approx(1 / ((43 * 7 + 2) * MS))
    assert three.together == pytest.approx(1 / max(stage.token_seconds for stage in three.stages))
    assert sum(len(stage.layers) for stage in three.stages) == 43


def test_a_message_costs_what_its_link_says(flash: Checkpoint) -> None:
    near = expected(flash, Planned(200 * GIB), Planned(200 * GIB))
    far = replace(near, link=Link(1e9 / 8, 5 * MS, 0.0, 0.0))
    row = 4 * flash.config.hidden * 2
    assert near.row_bytes == row
    assert 1 / far.alone - 1 / near.alone == pytest.approx(2 * 5 * MS + (2 * cluster.HEADER + row) * 8e-9)
    assert far.prefill() < near.prefill()
    assert replace(near, link=Link(1e4, 1.0)).binds[0] == "link"


def test_pieces_of_a_prompt_overlap(flash: Checkpoint) -> None:
    one, two = (expected(flash, *[Planned(200 * GIB)] * count) for count in (1, 2))
    # Eight pieces on two stages: the longer one's eight turns and one of the other, against eight of both.
    longer, shorter = sorted((len(stage.layers) for stage in two.stages), reverse=True)
    expected_ratio = 8 * (longer + shorter) / (8 * longer + shorter)
    assert two.prefill() / one.prefill() == pytest.approx(expected_ratio, rel=0.01)


def test_memory_of_more_machines_replaces_the_disk(flash: Checkpoint) -> None:
    quick = [Planned(16 * GIB, 30.0)]
    one, six = expected(flash, *quick), expected(flash, *quick * 6)
    assert one.binds[0] == "disk"
    assert six.binds[0] == "compute"
    assert six.alone > 2 * one.alone


def test_a_faster_machine_has_more_layers_and_less_to_do_for_each(flash: Checkpoint) -> None:
    slow, fast = expected(flash, Planned(200 * GIB), Planned(200 * GIB, 3.0)).stages
    assert len(fast.layers) > 2 * len(slow.layers)
    whole = costs(flash)
    assert costs_of(whole, range(2), True, 2.0).head == whole.head / 2
    assert costs_of(whole, range(2), False, 2.0).head == 0


def test_expert_workers_take_what_ends_together(flash: Checkpoint) -> None:
    one = expected(flash, Planned(200 * GIB))

    def helped(link: Link, *workers: Planned) -> Helped:
        return expect_helped(flash, one, one.costs, workers, link)[0]

    # Six experts of a millisecond in each layer: an equal takes half of them, one with little memory what it holds.
    equal = helped(NEAR, Planned(200 * GIB))
    assert equal.share == pytest.approx(0.5, rel=1e-3)
    assert equal.alone_seconds - equal.seconds == pytest.approx(43 * 3 * MS, rel=1e-3)
    assert helped(NEAR, Planned(10 * GIB)).share == pytest.approx(0.125, rel=0.1)
    assert helped(NEAR, Planned(200 * GIB, 3.0)).share == pytest.approx(0.75, rel=1e-3)
    slow = helped(Link(1e9 / 8, 3 * MS), Planned(200 * GIB))
    assert (slow.share, slow.useful) == (0, False)
    assert helped(NEAR, Planned(GIB // 8)).share == 0


def test_what_cannot_work_is_said(flash: Checkpoint) -> None:
    with pytest.raises(BudgetError, match=r"stage 2, layers .*: memory is"):
        expected(flash, Planned(64 * GIB), Planned(GIB // 64))
    with pytest.raises(ClusterError, match="44 stages, but the model has 43 layers"):
        expected(flash, *[Planned(GIB)] * 44)


def test_machines_as_people_write_them() -> None:
    assert parse_machines("16GiB,8GiB*2", "--cluster") == [Planned(16 * GIB), Planned(8 * GIB, 2.0)]
    for text in ("16GiB*", "16GiB*x", "16GiB*0", "x", "16GiB,,8GiB", "1GiB*nan"):
        with pytest.raises(OptionError, match="--cluster is"):
            parse_machines(text, "--cluster")

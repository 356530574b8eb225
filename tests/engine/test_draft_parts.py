"""What speculation is made of: drafters, the gate's costs and chances, and when a drafter is asked."""

from typing import Any

import pytest

from penstock.engine import draft_record, gate, speculation
from penstock.engine.draft_record import Record
from penstock.engine.drafters import Draft, NgramDrafter
from penstock.engine.engine import Engine
from penstock.engine.gate import Chances, ComputeCosts, StepCosts, best_depth
from penstock.engine.step_watch import Spent
from penstock.errors import OptionError
from penstock.pocket import pocket_path


def tokens_of(drafts: list[Draft]) -> list[int]:
    return [draft.token for draft in drafts]


def test_what_followed_last_time() -> None:
    drafter = NgramDrafter()
    drafter.push([1, 2, 3, 4, 5, 6, 9, 2, 3, 4, 7, 7, 1, 2, 3, 4])
    assert tokens_of(drafter.propose(None, 4, 3, 0.0)) == [5, 6, 9]  # four alike, not the latest three
    drafter.push([8])
    assert drafter.propose(None, 8, 3, 0.0) == []


def test_longer_matches_are_surer() -> None:
    sure = []
    for length in (3, 8, 40):
        drafter = NgramDrafter()
        drafter.push([*range(length), 99, 98, *range(length)])
        sure.append(drafter.propose(None, length - 1, 1, 0.0)[0])
    assert tokens_of(sure) == [99] * 3
    assert sure[0].sure < sure[1].sure < sure[2].sure


@pytest.fixture
def measured() -> StepCosts:
    costs = StepCosts()
    for rows in (1, 2, 4) * 30:
        costs.told(rows, 0.9 + 0.1 * rows)
    return costs


def test_the_deepest_that_pays(measured: StepCosts) -> None:
    assert best_depth([1.0] * 4, 1, measured)[0] == 4
    assert best_depth([0.0] * 4, 1, measured) == (0, 1.0)
    assert best_depth([0.9, 0.05, 0.9], 1, measured)[0] == 1
    slow = ComputeCosts()
    for _ in range(2):
        slow.told(1, 1.0)
    assert best_depth([0.5], 1, measured, slow)[0] == 0
    assert best_depth([0.5], 1, measured)[1] == pytest.approx(1.5 / 1.1)


def test_a_step_that_others_disturbed_says_little(measured: StepCosts) -> None:
    before = measured.at(2)
    measured.told(2, 50.0)
    assert measured.at(2) < 1.2 * before


def test_a_width_says_little_the_first_time_and_when_it_was_long_ago() -> None:
    costs = ComputeCosts()
    for rows, seconds in ((1, 9.0), (1, 1.0), (2, 9.0)):
        costs.told(rows, seconds)
    assert costs.at(2) == pytest.approx(1.4)  # nothing is known of two
    for seconds in (5.0, 5.0):
        costs.told(2, seconds)
    assert costs.at(2) == 5.0
    for _ in range(gate.STALE + 1):
        costs.told(1, 1.0)
    assert costs.at(2) == pytest.approx(1.4)


def test_a_step_costs_no_more_than_a_wider_one() -> None:
    costs = ComputeCosts()
    for rows, seconds in ((1, 1.0), (2, 9.0), (3, 2.0)) * 2:
        costs.told(rows, seconds)
    assert [costs.at(rows) for rows in (1, 2, 3)] == [1.0, 2.0, 2.0]


def test_chances_follow_what_happens() -> None:
    chances = Chances()
    for _ in range(200):
        chances.told("ngram", 0, 1, True)
    assert chances.of("ngram", 0, 1) > 0.9
    assert chances.of("ngram", 1, 1) > 0.9  # as the place before, until it is tried
    for _ in range(20):
        chances.told("ngram", 1, 1, False)
    assert chances.of("ngram", 1, 1) < 0.2
    for _ in range(200):
        chances.told("ngram", 0, 1, False)
    assert chances.of("ngram", 0, 1) < 0.1


def test_a_trial_that_is_right_says_more_than_another_text_did() -> None:
    chances = Chances()
    for place in (0, 1):
        for _ in range(200):
            chances.told("mtp", place, 3, False)
    sure = chances.of("mtp", 0, 3)
    chances.begin_anew("mtp", 4)
    assert chances.of("mtp", 0) > 0.7
    assert chances.of("mtp", 1) == chances.of("mtp", 0)
    assert chances.of("mtp", 0, 3) == sure
    assert chances.of("ngram", 0) == gate.PRIOR


def test_a_drafter_is_closed_when_what_it_saves_is_less_than_what_it_takes() -> None:
    record = Record("mtp")
    record.turn(True)
    record.worth = 1.0
    asked = 0
    while record.saved(-0.25):  # nobody takes its guesses
        asked += 1
    assert 10 < asked < 30
    record.turn(False)
    assert not record.due
    record.patience, record.idle = draft_record.LONGEST, draft_record.SHORTEST + 1
    record.begin_answer()  # of another kind, perhaps
    assert record.due


def test_answers_that_nobody_can_guess_are_tried_less_and_less() -> None:
    record, waits = Record("mtp"), list[int]()
    for _ in range(12):
        record.begin_answer()
        waits.append(record.patience)
        record.begin_trial()  # in vain
    assert waits == sorted(waits)
    assert waits[-1] == draft_record.LONGEST
    record.in_vain = 0  # something was right
    record.begin_answer()
    assert record.patience == draft_record.SHORTEST


def test_what_earlier_answers_gained_keeps_a_drafter_open_for_less_long_than_this_one() -> None:
    closed = []
    for is_new in (False, True):
        record, asked = Record("mtp"), 0
        record.worth, record.spent = 4.0, 0.5
        if is_new:
            record.begin_answer()
            record.begin_answer()  # a short one goes before
        while record.saved(-1.0):
            asked += 1
        closed.append(asked)
    assert 3 < closed[1] < 0.5 * closed[0]


def test_a_plain_step_that_follows_drafts_says_nothing_of_what_plain_steps_cost() -> None:
    shared = speculation.Speculation(["ngram"])
    for rows, seconds in ((1, 9.0), (1, 1.0), (3, 2.0), (1, 5.0), (3, 2.0), (1, 5.0), (1, 1.0)):
        shared.told(1, rows, 1, Spent(seconds))
    assert shared.costs.at(1) == 1.0


def test_an_answer_after_others_without_drafts_rests_sooner() -> None:
    shared, engine = speculation.Speculation(["ngram"]), Engine(pocket_path(), draft="off")

    def awake(ids: range) -> int:
        session, speculator = engine.session(), shared.begin()
        session.feed([ids[0]])
        looks = 0
        for token in ids[1:]:
            assert speculator.propose(session, token, 1) == []
            looks += speculator.awake
            session.feed([token], logits="none")
        return looks

    first, second = awake(range(100, 150)), awake(range(200, 250))
    assert second < 0.6 * first


def test_options_say_who_drafts() -> None:
    found: dict[str, Any] = {}
    for draft in ("off", "ngram", "mtp", "auto"):
        engine = Engine(pocket_path(), draft=draft, load=False)
        found[draft] = engine.drafters
    assert found == {"off": (), "ngram": ("ngram",), "mtp": ("mtp",), "auto": ("ngram", "mtp")}


def test_auto_leaves_the_draft_block_out_where_experts_come_from_disk() -> None:
    """Its memory is worth more to experts.  What needs no memory may guess."""
    plan = Engine(pocket_path(), draft="off", context=256, load=False).plan
    tight = {
        draft: Engine(pocket_path(), draft=draft, context=256, memory=plan.smallest + (4 << 20), load=False)
        for draft in ("auto", "off", "ngram", "mtp")
    }
    assert {draft: engine.drafters for draft, engine in tight.items()} == {
        "auto": ("ngram",),
        "off": (),
        "ngram": ("ngram",),
        "mtp": ("mtp",),
    }
    assert {engine.plan.mode for engine in tight.values()} == {"direct"}
    assert tight["auto"].plan == tight["off"].plan != tight["mtp"].plan
    with pytest.raises(OptionError, match="was left out; draft 'mtp' keeps it"):
        tight["auto"].mtp_logits(tight["auto"].session(), 5)


def test_what_rows_fetch_counts() -> None:
    """Before wide steps were seen a row is expected to fetch what the first does; then what it really does."""
    costs = StepCosts()
    for _ in range(20):
        costs.told(1, 3.0, fetched=100.0, waited=2.0)
    assert costs.at(2) - costs.at(1) > 2.0
    assert best_depth([0.6], 1, costs)[0] == 0
    for rows in (1, 2, 3) * 60:  # all in the cache by now, but for the first row's
        costs.told(rows, 3.0 + 0.1 * (rows - 1), fetched=100.0, waited=2.0)
    assert costs.fetch.bytes_at(2) == pytest.approx(costs.fetch.bytes_at(1), rel=0.01)
    assert best_depth([0.6], 1, costs)[0] == 1

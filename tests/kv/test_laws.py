"""Law 3: rewind, fork, save and restore give the very state that feeding the same tokens gives, bit for bit.
Law 1: how tokens were cut into chunks leaves no trace."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock
from penstock.backend.state import Rows
from tests.tiny import TinyModel
from tests.tolerance import CHUNKING


def live(session: penstock.Session) -> dict[str, Rows]:
    """The state that counts for the future: without the spare rows kept for rewinding."""
    state = session.state
    return state.pool.tensors(state.slot, state.position, state.position)


def assert_same_state(a: penstock.Session, b: penstock.Session) -> None:
    assert a.tokens == b.tokens
    ours, theirs = live(a), live(b)
    assert ours.keys() == theirs.keys()
    for name, rows in ours.items():
        assert rows.tobytes() == theirs[name].tobytes(), name


def assert_close(a: NDArray[np.float32] | None, b: NDArray[np.float32] | None) -> None:
    assert a is not None
    assert b is not None
    if CHUNKING == 0:
        assert np.array_equal(a.view(np.uint32), b.view(np.uint32))
    else:
        assert np.abs(a - b).max() <= CHUNKING * max(float(np.ptp(a)), 1.0)


def fresh(engine: penstock.Engine, ids: list[int]) -> penstock.Session:
    """A session that never did anything but be fed these tokens at once."""
    session = engine.session()
    if ids:
        session.feed(ids, logits="none")
    return session


# One action of a session's life: (what, how much)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 90)),
        st.tuples(st.just("rewind"), st.integers(0, 30)),
        st.tuples(st.just("fork"), st.just(0)),
        st.tuples(st.just("save and load"), st.just(0)),
    ),
    min_size=1,
    max_size=8,
)


@given(actions=ACTIONS, data=st.data())
def test_any_life_leads_to_the_same_state(
    engine: penstock.Engine,
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[str, int]],
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    session = engine.session()
    for action, amount in actions:
        if action == "feed":
            session.feed(rng.integers(0, engine.config.vocab_size, amount).tolist(), logits="none")
        elif action == "rewind":
            session.rewind(min(amount, session.max_rewind))
        elif action == "fork":
            session = session.fork()
        else:
            path = tmp_path_factory.mktemp("saved") / "session"
            session.save(path)
            session = engine.load_session(path)
    reference = fresh(engine, session.tokens)
    assert_same_state(session, reference)
    following = rng.integers(0, engine.config.vocab_size, 9).tolist()
    assert_close(session.feed(following, logits="all"), reference.feed(following, logits="all"))
    assert_same_state(session, reference)


@given(cuts=st.lists(st.integers(1, 299), max_size=12))
def test_chunks_leave_no_trace(engine: penstock.Engine, tiny: TinyModel, cuts: list[int]) -> None:
    whole = engine.session()
    expected = whole.feed(tiny.ids, logits="all")
    session = engine.session()
    edges = [0, *sorted(set(cuts)), len(tiny.ids)]
    parts = [session.feed(tiny.ids[a:b], logits="all") for a, b in itertools.pairwise(edges)]
    assert_close(np.concatenate([part for part in parts if part is not None]), expected)
    assert_same_state(session, whole)


def test_token_by_token_leaves_no_trace(engine: penstock.Engine, tiny: TinyModel) -> None:
    ids = tiny.ids[:150]
    whole, session = engine.session(), engine.session()
    expected = whole.feed(ids, logits="all")
    rows = [session.feed([token]) for token in ids]
    assert_close(np.stack([row for row in rows if row is not None]), expected)
    assert_same_state(session, whole)


@given(lengths=st.lists(st.integers(1, 140), min_size=2, max_size=4), before=st.integers(0, 60))
def test_batch_mates_leave_no_trace(
    engine: penstock.Engine, tiny: TinyModel, lengths: list[int], before: int
) -> None:
    """Several sessions in one ragged step, one of them in the middle of its life."""
    alone, together = [], []
    work = []
    for number, length in enumerate(lengths):
        ids = tiny.ids[number * 7 : number * 7 + length]
        prefix = tiny.ids[:before] if number == 0 and before else []
        lone, mate = fresh(engine, prefix), fresh(engine, prefix)
        alone.append(lone.feed(ids, logits="all"))
        work.append((mate, ids))
        together.append((lone, mate))
    for own, shared in zip(alone, engine.feed(work, logits="all"), strict=True):
        assert_close(own, shared)
    for lone, mate in together:
        assert_same_state(lone, mate)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("prefill_chunk", [512, 64, 5])
def test_threads_and_chunk_size_leave_no_trace(
    engine: penstock.Engine, tiny: TinyModel, threads: int, prefill_chunk: int
) -> None:
    expected = engine.session().feed(tiny.ids[:200], logits="all")
    other = penstock.Engine(tiny.folder, threads=threads, prefill_chunk=prefill_chunk, max_rewind=24)
    assert_close(other.session().feed(tiny.ids[:200], logits="all"), expected)


def test_snapshot_and_rewind_at_every_position(
    engine: penstock.Engine, tiny: TinyModel, tmp_path: Path
) -> None:
    """At every n: save, load, and step back by 1 … 8; the next logits equal the never-interrupted run's."""
    ids = tiny.ids[:300]
    expected = engine.session().feed(ids, logits="all")
    assert expected is not None
    session = engine.session()
    for n in range(1, len(ids) - 8):
        session.feed([ids[n - 1]], logits="none")
        if n % 7 and n % 128 > 2:  # every residue of 4, and every edge of a long window
            continue
        session.save(tmp_path / "s")
        restored = engine.load_session(tmp_path / "s")
        assert_close(restored.feed(ids[n : n + 8], logits="all"), expected[n : n + 8])
        back = min(n, 1 + n % 8)
        restored.rewind(8 + back)
        assert_close(restored.feed(ids[n - back : n + 1], logits="all"), expected[n - back : n + 1])


def test_the_rewind_bound(engine: penstock.Engine, tiny: TinyModel) -> None:
    session = fresh(engine, tiny.ids[:100])
    assert session.max_rewind == 24
    with pytest.raises(penstock.RewindError, match="positions before 76 are no longer remembered"):
        session.rewind(25)
    assert session.position == 100
    session.rewind(20)
    assert session.max_rewind == 4
    with pytest.raises(penstock.RewindError):
        session.rewind(5)
    session.feed(tiny.ids[80:90])  # not past the old end: no more room to step back than before
    assert session.max_rewind == 14
    assert_same_state(session, fresh(engine, tiny.ids[:90]))
    session.rewind(90)  # everything can always be forgotten
    assert session.position == 0
    assert session.tokens == []
    with pytest.raises(penstock.RewindError):
        session.rewind(1)
    with pytest.raises(penstock.RewindError):
        session.rewind(-1)


def test_forks_go_their_own_ways(engine: penstock.Engine, tiny: TinyModel) -> None:
    trunk = fresh(engine, tiny.ids[:131])
    branch = trunk.fork()
    branch.feed(tiny.ids[200:280])
    trunk.feed(tiny.ids[131:140])
    assert_same_state(trunk, fresh(engine, tiny.ids[:140]))
    assert_same_state(branch, fresh(engine, tiny.ids[:131] + tiny.ids[200:280]))


def gone(*_: object) -> None:
    raise OSError("disk gone")


def test_a_failed_step_changes_nothing(
    engine: penstock.Engine, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fresh(engine, tiny.ids[:100])
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.model, "logits", gone)
        with pytest.raises(OSError, match="disk gone"):
            session.feed(tiny.ids[100:220])
    assert session.position == 100
    assert_same_state(session, fresh(engine, tiny.ids[:100]))
    session.feed(tiny.ids[100:150])
    assert_same_state(session, fresh(engine, tiny.ids[:150]))


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_failed_step_takes_no_rewind_away(
    engine: penstock.Engine, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """After a failed step of any size the session can still go back as far as it could before."""
    session = fresh(engine, tiny.ids[:150])
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.model, "logits", gone)
        with pytest.raises(OSError, match="disk gone"):
            session.feed(tiny.ids[150 : 150 + count])
    session.rewind(session.max_rewind)
    assert session.position == 126
    assert_same_state(session, fresh(engine, tiny.ids[:126]))
    again = session.feed(tiny.ids[126:160], logits="all")
    assert_close(again, fresh(engine, tiny.ids[:126]).feed(tiny.ids[126:160], logits="all"))

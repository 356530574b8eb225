"""Models larger than their memory: the same bits whatever the budget, mode and policy; nothing lost after errors."""

import os
from errno import EIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.errors import BudgetError, OptionError, ReadError
from penstock.storage import streamed
from penstock.storage.policies import POLICIES
from penstock.storage.reader import END, STALL, OpenFile, Reader
from penstock.storage.replay import replay
from penstock.storage.streamed import StreamedExperts
from penstock.storage.trace import read_trace
from penstock.weights.synth import synth
from tests.weights.official import official_checkpoint, official_config

PROMPT = [(7 * number + 3) % 256 for number in range(90)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("streamed") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4, 4, 0), hash_layers=2, mix="q8_0", skew=1.0)
    return path


def answers(engine: Engine) -> NDArray[np.float32]:
    """Logits of a prompt, of tokens after it, and of two sessions that go on together."""
    first, second = engine.session(), engine.session()
    found = [first.feed(PROMPT, logits="all"), second.feed(PROMPT[:40], logits="all")]
    for token in range(6):
        together = engine.feed([(first, [token + 5]), (second, [3 * token + 1, token])], logits="all")
        found += together
    return np.concatenate([part for part in found if part is not None])


def smallest(model: Path, chunk: int | None = None) -> int:
    return Engine(model, context=256, prefill_chunk=chunk).plan.smallest


@pytest.fixture(scope="module")
def expected(model: Path) -> NDArray[np.float32]:
    engine = Engine(model, context=256, prefill_chunk=64)
    assert engine.plan.mode == "mmap"
    return answers(engine)


def streaming(model: Path, extra: int = 0, chunk: int | None = None, **options: object) -> Engine:
    budget = smallest(model, chunk) + extra
    return Engine(
        model,
        context=256,
        memory=budget,
        streaming="direct",
        prefill_chunk=chunk,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_bits_with_every_policy(model: Path, expected: NDArray[np.float32], policy: str) -> None:
    with streaming(model, 14 * MIB, policy=policy, chunk=16) as engine:
        assert np.array_equal(answers(engine), expected)
        stats = engine.stats()
    assert stats["misses"] > stats["cached"] > 0
    assert stats["hits"] > 0
    assert stats["evictions"] > 0


@pytest.mark.parametrize("extra", [0, MIB // 2, 3 * MIB, 100 * MIB])
@pytest.mark.parametrize("chunk", [None, 1, 7, 64])
def test_the_same_bits_with_every_budget(
    model: Path, expected: NDArray[np.float32], extra: int, chunk: int | None
) -> None:
    with streaming(model, extra, chunk) as engine:
        assert engine.plan.total <= engine.plan.budget  # type: ignore[operator]
        assert np.array_equal(answers(engine), expected)
        held = engine.stats()["cached_bytes"]
    assert held <= engine.plan.experts_held


@pytest.mark.parametrize("options", [{"prefetch": "off"}, {"threads": 1}, {"simulate_low_precision": True}])
def test_other_options_keep_their_bits(model: Path, options: dict[str, object]) -> None:
    plain = answers(Engine(model, context=256, **options))  # type: ignore[arg-type]
    with streaming(model, MIB, None, **options) as engine:
        assert np.array_equal(answers(engine), plain)


def test_the_same_bits_while_what_was_used_most_is_still_on_its_way(
    model: Path, expected: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read ends before somebody waits.  The first experts of every block are missing, all others are coming."""
    monkeypatch.setattr(streamed, "IN_FLIGHT", 1)
    wait_any = Reader.wait_any

    def released(self: Reader, *args: object) -> object:
        self.inject(0, file)
        return wait_any(self, *args)  # type: ignore[arg-type]

    with streaming(model, 100 * MIB, chunk=64, learn="off") as engine:
        reader, file = reader_of(engine)
        store = engine.storage.experts
        assert isinstance(store, StreamedExperts)
        engine.session().feed(PROMPT)  # so that working memory is not new
        capacity = store.cache.capacity
        store.resize(1)
        store.resize(capacity)
        assert len(store.cache) == 0
        monkeypatch.setattr(Reader, "wait_any", released)
        reader.inject(STALL, file, 1 << 20)
        everyone = range(len(store.source.blocks) * store.source.experts)
        store.preload([key for key in everyone if key % store.source.experts >= 2])
        assert np.array_equal(answers(engine), expected)


def test_everything_in_memory(model: Path, expected: NDArray[np.float32]) -> None:
    with Engine(model, context=256, streaming="resident") as engine:
        assert np.array_equal(answers(engine), expected)
        first = engine.stats()
        answers(engine)
        second = engine.stats()
    assert first["evictions"] == 0
    assert second["disk_bytes"] == first["disk_bytes"]


def test_official_checkpoints_stream_too(tmp_path: Path) -> None:
    """Experts one by one, with scales of their own beside them, and a draft block that takes its turn."""
    folder = tmp_path / "tiny"
    official_checkpoint(folder, official_config(), seed=0, mtp=True)
    plain = Engine(folder, context=256)
    found = []
    for engine in (plain, streaming(folder, MIB, draft="mtp")):
        session = engine.session()
        session.feed(PROMPT)
        drafts = [engine.mtp_logits(session, 7), session.feed([7]), engine.mtp_logits(session, 9)]
        found.append([answers(engine), *drafts])
    for mine, other in zip(*found, strict=True):
        assert np.array_equal(mine, other)


# ── when blocks have to take turns ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks whose other weights are larger than what the smallest budget keeps of them."""
    path: Path = tmp_path_factory.mktemp("deep") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128) * 4, hash_layers=3, mix="f16", vocab=40_000)
    return path


@pytest.mark.parametrize("extra", [0, 2 * MIB, 5 * MIB])
def test_dense_weights_take_turns(deep: Path, extra: int) -> None:
    plain = answers(Engine(deep, context=256))
    with streaming(deep, extra) as engine:
        plan = engine.plan
        assert plan.streamed
        assert plan.slice_head or extra
        assert np.array_equal(answers(engine), plain)
        assert engine.stats()["dense_bytes_read"] > plan.dense_held


# ── budgets and options ───────────────────────────────────────────────────────────────────────────────────────


def test_a_budget_that_is_too_small_names_the_smallest(model: Path) -> None:
    least = smallest(model)
    with pytest.raises(BudgetError, match=f"needs {least / MIB:.0f} MiB at least"):
        Engine(model, context=256, memory=least - 1, streaming="direct")
    with pytest.raises(BudgetError, match="holds the whole model"):
        Engine(model, context=256, memory=least, streaming="resident")


def test_what_fits_is_mapped(model: Path) -> None:
    assert Engine(model, memory="8GiB").plan.mode == "mmap"
    assert Engine(model, memory=smallest(model), context=256).plan.mode == "direct"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory", "lots"),
        ("memory", -1),
        ("memory", 1.5),
        ("streaming", "yes"),
        ("policy", "mru"),
        ("prefetch", "on"),
    ],
)
def test_impossible_options_are_refused(model: Path, name: str, value: object) -> None:
    with pytest.raises(OptionError, match=name):
        Engine(model, **{name: value})  # type: ignore[arg-type]


def test_auto_follows_the_machine(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less memory on the machine than the model has, `auto` streams, and gives way when memory gets short."""
    from penstock.engine import planning
    from penstock.machine.memory import Memory
    from penstock.storage import watch

    room = smallest(model) + 4 * MIB
    memory = Memory(total=16 << 30, available=room + (16 << 30) // 20, swap=0)
    monkeypatch.setattr(planning, "read_memory", lambda: memory)
    monkeypatch.setattr(watch, "EVERY", 0.0)
    short = Memory(total=16 << 30, available=0, swap=0)
    with Engine(model, context=256, memory="auto") as engine:
        assert engine.plan.mode == "direct"
        before = engine.stats()["capacity_bytes"]
        monkeypatch.setattr(watch, "read_memory", lambda: short)
        plain = answers(Engine(model, context=256))
        assert np.array_equal(answers(engine), plain)
        assert engine.stats()["capacity_bytes"] < before


# ── traces ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["lru", "lfru"])
@pytest.mark.parametrize("prefetch", ["auto", "off"])
def test_replay_finds_the_engines_own_counters(
    model: Path, tmp_path: Path, policy: str, prefetch: str
) -> None:
    path = tmp_path / "trace.jsonl"
    # Sessions that outgrow the plan would make the cache smaller meanwhile.
    with streaming(model, 6 * MIB, policy=policy, prefetch=prefetch, trace=path, sessions=3) as engine:
        answers(engine)
        stats, capacity = engine.stats(), engine.plan.experts_held
    found = replay(read_trace(path), policy, capacity)
    assert (found.hits, found.misses, found.evictions) == (stats["hits"], stats["misses"], stats["evictions"])


# ── faults ────────────────────────────────────────────────────────────────────────────────────────────────────


def reader_of(engine: Engine) -> tuple[Reader, OpenFile]:
    reader = engine.storage.reader
    assert reader is not None
    return reader, reader.open(engine.checkpoint.path)


@pytest.mark.parametrize("kind", [EIO, END])
def test_a_read_that_fails_is_this_requests_error(
    model: Path, expected: NDArray[np.float32], kind: int
) -> None:
    with streaming(model, MIB) as engine:
        reader, file = reader_of(engine)
        session = engine.session()
        session.feed(PROMPT[:20])
        for count in (40, 1000):
            reader.inject(kind, file, count, from_offset=0)
            with pytest.raises(ReadError, match=r"(expert \d+ of blk|weights of blk).*m.gguf"):
                session.feed(PROMPT[session.position : 90])
            reader.inject(0, file, 0)
        assert session.position < 90
        left = PROMPT[session.position :]
        found = session.feed(left, logits="all")
        assert found is not None
        assert np.array_equal(found[-1], expected[89])
        assert np.array_equal(answers(engine), expected)


def test_an_error_that_passes_is_not_seen(model: Path, expected: NDArray[np.float32]) -> None:
    with streaming(model, MIB) as engine:
        reader, file = reader_of(engine)
        reader.inject(EIO, file, 2)
        assert np.array_equal(answers(engine), expected)
        assert engine.stats()["read_retries"] == 2


def test_a_file_cut_short_while_open(model: Path, tmp_path: Path, expected: NDArray[np.float32]) -> None:
    copy = tmp_path / "m.gguf"
    copy.write_bytes(model.read_bytes())
    with streaming(copy) as engine:
        session = engine.session()
        session.feed(PROMPT[:10])
        os.truncate(copy, copy.stat().st_size // 4)
        with pytest.raises(ReadError, match=r"m\.gguf.*end of the file"):
            session.feed(PROMPT[10:])
        copy.write_bytes(model.read_bytes())  # the same file again: what was asked for comes
        assert np.array_equal(answers(engine), expected)


def test_closing_ends_it(model: Path) -> None:
    engine = streaming(model)
    engine.session().feed(PROMPT[:5])
    engine.close()
    with pytest.raises(OptionError, match="closed"):
        engine.session().feed(PROMPT)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_resizing_gives_memory_back(model: Path, expected: NDArray[np.float32]) -> None:
    with streaming(model, 4 * MIB) as engine:
        store = engine.storage.experts
        assert isinstance(store, StreamedExperts)
        answers(engine)
        full = store.memory.slots.held
        store.resize(store.cache.capacity // 3)
        assert store.memory.slots.held < full
        assert store.cache.used <= store.cache.capacity
        assert np.array_equal(answers(engine), expected)

"""The public Python contract: names, shapes, errors."""

import numpy as np
import pytest

import penstock
from tests.tiny import TinyModel


def test_feed_shapes(engine: penstock.Engine, tiny: TinyModel) -> None:
    session = engine.session()
    vocab = engine.config.vocab_size
    last = session.feed(tiny.ids[:5])
    assert last is not None
    assert last.shape == (vocab,)
    assert last.dtype.name == "float32"
    every = session.feed(np.array(tiny.ids[5:9]), logits="all")  # type: ignore[arg-type]
    assert every is not None
    assert every.shape == (4, vocab)
    assert every.dtype.name == "float32"
    assert session.feed(tiny.ids[9:10], logits="none") is None
    assert (session.position, session.tokens) == (10, tiny.ids[:10])


def test_long_feeds_are_cut_and_still_return_every_row(tiny: TinyModel) -> None:
    engine = penstock.Engine(tiny.folder, prefill_chunk=32)
    a, b = engine.session(), engine.session()
    results = engine.feed([(a, tiny.ids[:70]), (b, tiny.ids[:3])], logits="all")
    assert [None if r is None else r.shape[0] for r in results] == [70, 3]
    assert [r.shape for r in engine.feed([(a, tiny.ids[:40]), (b, tiny.ids[:40])]) if r is not None] == [
        (320,)
    ] * 2
    assert engine.feed([], logits="all") == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([320], "token id 320 is outside the vocabulary of 320"),
        ([5, -1], "token id -1"),
        ([], "no tokens"),
        ([1.5], "whole numbers"),
        (["a"], "whole numbers"),
    ],
)
def test_bad_tokens(engine: penstock.Engine, ids: list[int], message: str) -> None:
    session = engine.session()
    with pytest.raises(penstock.TokenError, match=message):
        session.feed(ids)
    assert session.position == 0


def test_the_context_is_a_limit(tiny: TinyModel) -> None:
    engine = penstock.Engine(tiny.folder, context=50)
    session = engine.session()
    session.feed(tiny.ids[:40])
    with pytest.raises(penstock.ContextLengthError, match="11 tokens after 40 do not fit the context of 50"):
        session.feed(tiny.ids[:11])
    session.feed(tiny.ids[:10])
    assert session.position == 50


def test_bad_batches(engine: penstock.Engine, tiny: TinyModel) -> None:
    session = engine.session()
    with pytest.raises(penstock.OptionError, match="appears twice"):
        engine.feed([(session, [1]), (session, [2])])
    with pytest.raises(penstock.OptionError, match="another engine"):
        penstock.Engine(tiny.folder).feed([(session, [1])])
    with pytest.raises(penstock.OptionError, match="'last', 'all' or 'none'"):
        session.feed([1], logits="some")
    good = engine.session()
    with pytest.raises(penstock.TokenError):
        engine.feed([(good, [1]), (session, [999])])
    assert good.position == 0  # nothing happens when any part is wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_dtype": "f8"}, "kv_dtype is 'f8', expected one of f16, bf16, f32"),
        ({"threads": 0}, "threads is 0"),
        ({"context": -1}, "context is -1"),
        ({"context": 1 << 20}, "the model's limit is 8,192"),
        ({"max_rewind": -1}, "max_rewind is -1"),
        ({"prefill_chunk": 0}, "prefill_chunk is 0"),
    ],
)
def test_bad_options(tiny: TinyModel, options: dict[str, object], message: str) -> None:
    with pytest.raises(penstock.OptionError, match=message):
        penstock.Engine(tiny.folder, **options)  # type: ignore[arg-type]


def test_what_a_model_lacks_is_said(engine: penstock.Engine) -> None:
    with pytest.raises(penstock.TokenError, match=r"no tokenizer\.json"):
        _ = engine.tokenizer
    session = engine.session()
    session.feed([1])
    with pytest.raises(penstock.OptionError, match="no MTP block"):
        engine.mtp_logits(session, 5)
    with pytest.raises(penstock.ModelFormatError, match="no such file"):
        penstock.Engine("/nowhere/model.gguf")


def test_every_error_is_a_penstock_error() -> None:
    public = [getattr(penstock, name) for name in penstock.__all__]
    errors = [value for value in public if isinstance(value, type) and issubclass(value, Exception)]
    assert len(errors) >= 7
    assert all(issubclass(error, penstock.PenstockError) for error in errors)


def test_generate_greedy_matches_feeding(engine: penstock.Engine, tiny: TinyModel) -> None:
    steps = list(
        engine.generate(
            tiny.ids[:20], max_tokens=12, sampling=penstock.Sampling(temperature=0, ignore_eos=True)
        )
    )
    session = engine.session()
    logits = session.feed(tiny.ids[:20])
    for step in steps:
        assert logits is not None
        assert step.token == int(logits.argmax())
        assert step.logprob == pytest.approx(
            float(logits[step.token] - np.log(np.exp(logits.astype(float)).sum()))
        )
        logits = session.feed([step.token])
    assert [step.finish_reason for step in steps] == [None] * 11 + ["length"]


def test_generate_stops_at_eos_and_at_the_context(tiny: TinyModel) -> None:
    engine = penstock.Engine(tiny.folder, context=30)
    greedy = penstock.Sampling(temperature=0, ignore_eos=True)
    steps = list(engine.generate(tiny.ids[:20], max_tokens=100, sampling=greedy))
    assert len(steps) == 11  # ten more tokens fit, and the last one need not be fed
    assert steps[-1].finish_reason == "length"
    third = steps[2].token
    first = [step.token for step in steps].index(third)
    steps = list(
        engine.generate(
            tiny.ids[:20], 100, penstock.Sampling(temperature=0, ignore_eos=True, stop_token_ids=[third])
        )
    )
    assert (len(steps), steps[-1].finish_reason) == (first + 1, "stop")


def test_generation_continues_a_session(engine: penstock.Engine, tiny: TinyModel) -> None:
    greedy = penstock.Sampling(temperature=0, ignore_eos=True)
    session = engine.session()
    session.feed(tiny.ids[:30])
    steps = list(engine.generate(tiny.ids[30:40], 5, greedy, session=session))
    assert [s.token for s in steps] == [s.token for s in engine.generate(tiny.ids[:40], 5, greedy)]
    assert session.tokens == tiny.ids[:40] + [step.token for step in steps[:-1]]


def test_a_seed_gives_the_same_text_whatever_the_batch(engine: penstock.Engine, tiny: TinyModel) -> None:
    """Drawn alone or while other sessions share every step."""
    sampling = penstock.Sampling(temperature=1.0, top_p=0.9, seed=7, ignore_eos=True)
    alone = [step.token for step in engine.generate(tiny.ids[:20], 20, sampling)]
    session, mate = engine.session(), engine.session()
    generation = engine.generation(session, tiny.ids[:20], 20, sampling)
    logits, _ = engine.feed([(session, tiny.ids[:20]), (mate, tiny.ids[50:90])])
    together = []
    for number in range(20):
        assert logits is not None
        together.append(generation.next(logits).token)
        logits, _ = engine.feed([(session, [together[-1]]), (mate, tiny.ids[number : number + 3])])
    assert together == alone


def test_max_tokens_must_be_positive(engine: penstock.Engine) -> None:
    with pytest.raises(penstock.OptionError, match="max_tokens is 0"):
        next(engine.generate([1], max_tokens=0))

"""What is sampled under a grammar, without a model."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.constraint import LONGEST, Constraints, Grammar, GrammarError, Rules
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError
from tests.engine.random_answers import answer, constraints, tokenizer
from tests.engine.samplers import sampler_of

ODD = '%llguidance {"no_forcing": true}\nstart: "yes" | "no"\n'
names = st.text("abcXYZ_ é", min_size=1, max_size=4)
leaves: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.sampled_from(["string", "integer", "number", "boolean", "null"]).map(lambda kind: {"type": kind}),
    st.lists(st.one_of(names, st.integers(-9, 9), st.none()), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.just({"type": "integer", "minimum": 3, "maximum": 17}),
    st.just({"type": "string", "maxLength": 3}),
    st.just({"$ref": "#/$defs/colour"}),
)


def _object(properties: dict[str, Any], required: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(names, inner, max_size=3), st.integers(0, 3)),
        inner.map(lambda items: {"type": "array", "items": items, "maxItems": 3}),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=6,
)


def json_grammar(schema: Any) -> str:
    return '%llguidance {"no_forcing": true}\nstart: %json ' + json.dumps(schema)


def test_what_stays_compiled_is_bounded() -> None:
    constraints = Constraints(tokenizer(), tokenizer().eos_ids, kept=400)
    for letter in "abcdef":
        constraints.matcher(f'start: "{letter * 100}"')
    assert sum(map(len, constraints._compiled)) <= 400
    with pytest.raises(GrammarError, match="at most 1,600"):
        constraints.matcher(f'start: "{"a" * 1600}"')


@settings(max_examples=80, deadline=None)
@given(schemas, st.integers(0, 1 << 30))
def test_whatever_is_sampled_fits_the_schema(schema: dict[str, Any], seed: int) -> None:
    schema = {**schema, "$defs": {"colour": {"enum": ["red", "blue"]}}}
    held = constraints().constrain(Rules(Grammar(json_grammar(schema))))
    text = tokenizer().decode(answer(held, seed))
    jsonschema.validate(json.loads(text), schema)


def test_the_best_allowed_token_wins_and_log_probabilities_stay_the_models_own() -> None:
    codec = tokenizer()
    yes, other = codec.encode("yes")[0], codec.encode("maybe")[0]
    logits = np.zeros(codec.vocab_size, np.float32)
    logits[other], logits[yes] = 9, 1
    sampler = sampler_of(Sampling(temperature=0, top_logprobs=1), [], codec.vocab_size)
    free = sampler.sample(logits)
    sampler.constraint = constraints().constrain(Rules(Grammar(ODD)))
    held = sampler.sample(logits)
    assert (free.token, held.token) == (other, yes)
    assert held.top == free.top
    assert held.top[0][0] == other
    assert held.logprob == pytest.approx(free.logprob - 8)


def test_free_text_is_left_alone_until_the_trigger() -> None:
    codec = tokenizer()
    trigger = codec.token_id("</think>")
    assert trigger is not None
    held = constraints().constrain(Rules(triggers={trigger: Grammar(ODD)}))
    logits = np.ones(codec.vocab_size, np.float32)
    for token in codec.encode("Well, no </think"):
        assert held.mask(logits) is logits
        assert held.free
        held.accept(token)
    held.accept(trigger)
    assert not held.free
    masked = held.mask(logits)
    assert np.isfinite(logits).all(), "the logits themselves are not touched"
    allowed = {codec.token_bytes(int(token)) for token in np.flatnonzero(np.isfinite(masked))}
    assert allowed <= {b"y", b"ye", b"yes", b"n", b"no"}
    assert {b"y", b"n"} <= allowed


def test_an_answer_that_must_have_a_form_cannot_end_before_it() -> None:
    codec = tokenizer()
    trigger = codec.token_id("</think>")
    assert trigger is not None
    held = constraints().constrain(Rules(triggers={trigger: Grammar(ODD)}, may_end=False))
    logits = np.ones(codec.vocab_size, np.float32)
    (eos,) = codec.eos_ids
    assert held.mask(logits)[eos] == -np.inf
    held.accept(trigger)
    for token in codec.encode("yes"):
        assert held.mask(logits)[eos] == -np.inf
        held.accept(token)
    assert np.flatnonzero(np.isfinite(held.mask(logits))).tolist() == [eos]


def test_a_gate_lets_a_marker_in_only_after_its_text() -> None:
    codec = tokenizer()
    marker = codec.token_id("｜DSML｜")
    assert marker is not None
    held = constraints().constrain(Rules(gates={marker: (b"<",)}, begun="Look: <"))
    logits = np.ones(codec.vocab_size, np.float32)
    assert held.mask(logits) is logits, "the text that is there already counts"
    held.accept(codec.encode("b")[0])
    assert held.mask(logits)[marker] == -np.inf


@pytest.mark.parametrize("text", ["</think>", "<｜DSML｜"])
def test_a_forbidden_text_cannot_be_spelled_in_any_tokens(text: str) -> None:
    codec = tokenizer()
    wanted = text.encode()
    held = constraints().constrain(Rules(never=(wanted,)))
    logits = np.ones(codec.vocab_size, np.float32)
    single = {
        codec.token_bytes(id): id for id in reversed(range(codec.vocab_size)) if not codec.is_special(id)
    }
    for byte in wanted[:-1]:
        assert np.isfinite(held.mask(logits)[single[bytes([byte])]])
        held.accept(single[bytes([byte])])
    banned = np.flatnonzero(~np.isfinite(held.mask(logits)))
    expected = [
        id
        for id in range(codec.vocab_size)
        if not codec.is_special(id)
        and (codec.token_bytes(id).startswith(wanted[-1:]) or wanted in codec.token_bytes(id))
    ]
    assert banned.tolist() == expected


def test_a_grammar_that_demands_a_forbidden_text_gets_it() -> None:
    held = constraints().constrain(Rules(Grammar('start: "abc"', never=(b"abc",))))
    assert tokenizer().decode(answer(held, 1)) == "abc"


def test_markers_are_not_text() -> None:
    codec = tokenizer()
    held = constraints().constrain(Rules(Grammar("start: /(?s:.*)/")))
    masked = held.mask(np.ones(codec.vocab_size, np.float32))
    markers = {id for id in range(codec.vocab_size) if codec.is_special(id)}
    assert markers & set(np.flatnonzero(np.isfinite(masked)).tolist()) == set(codec.eos_ids)


def test_an_answer_goes_on_from_what_is_there() -> None:
    held = constraints().constrain(Rules(Grammar(ODD), begun="ye"))
    assert tokenizer().decode(answer(held, 3)) == "s"
    with pytest.raises(OptionError, match="begins with"):
        constraints().constrain(Rules(Grammar(ODD), begun="maybe"))


def test_constraints_of_one_grammar_do_not_share_their_state() -> None:
    codec = tokenizer()
    first, second = (constraints().constrain(Rules(Grammar(ODD))) for _ in range(2))
    for token in codec.encode("yes"):
        first.accept(token)
    assert codec.decode(answer(second, 5)) in ("yes", "no")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("start: nowhere", "nowhere"),
        (json_grammar({"type": "colour"}), "colour"),
        (json_grammar({"$ref": "#/$defs/missing"}), "missing"),
        (json_grammar({"type": "string", "pattern": "(?=a)"}), "look-ahead"),
        (json_grammar({"$ref": "#"}), "nothing fits"),
        ("start: " + '"a" ' * LONGEST, "too large"),
        ('start: "\ud800"', "ud800"),
    ],
)
def test_a_grammar_that_cannot_be_used_says_why(grammar: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        constraints().constrain(Rules(Grammar(grammar)))


def test_a_vocabulary_without_an_end_holds_nothing() -> None:
    with pytest.raises(GrammarError, match="ends a text"):
        Constraints(tokenizer(), ()).constrain(Rules(Grammar(ODD)))


def test_a_bias_that_leaves_nothing_is_an_error() -> None:
    codec = tokenizer()
    starts = [id for id in range(codec.vocab_size) if codec.token_bytes(id)[:1] in (b"y", b"n")]
    sampler = sampler_of(Sampling(logit_bias=dict.fromkeys(starts, -np.inf)), [], codec.vocab_size)
    sampler.constraint = constraints().constrain(Rules(Grammar(ODD)))
    with pytest.raises(OptionError, match="logit_bias"):
        sampler.sample(np.ones(codec.vocab_size, np.float32))


@pytest.mark.parametrize(
    "rules",
    [
        Rules(Grammar(ODD)),
        Rules(Grammar('start: "abc"', never=(b"abc",))),
        Rules(Grammar("start: /(?s:.*)/", never=(b"ab",))),
        Rules(gates={5: (b"<",)}),
        Rules(never=(b"ab",), may_end=False),
        Rules(),
    ],
)
def test_bits_allow_what_the_mask_leaves(rules: Rules) -> None:
    """A device gets what may come next as bits."""
    held = constraints().constrain(rules)
    for _ in range(2):
        logits = np.zeros(tokenizer().vocab_size, np.float32)
        masked, bits = held.mask(logits), held.bits(logits.size)
        if bits is None:
            assert masked is logits
            return
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little").astype(bool)
        np.testing.assert_array_equal(allowed[: logits.size], np.isfinite(masked))
        assert not allowed[logits.size :].any()
        held.accept(int(np.flatnonzero(np.isfinite(masked))[-1]))

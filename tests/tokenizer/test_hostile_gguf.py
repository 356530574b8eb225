"""Damaged or malicious GGUF metadata is refused with a message, never a crash."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ModelFormatError
from penstock.tokenizer import (
    byte_tokenizer_metadata,
    tokenizer_from_gguf,
)

GOOD = byte_tokenizer_metadata(290)
K = "tokenizer.ggml."
TOKENS: list[str] = GOOD[f"{K}tokens"]
TYPES: list[int] = GOOD[f"{K}token_type"]

BAD_METADATA: list[tuple[str, Any, str]] = [
    ("model", None, "model: expected 'gpt2'; found None"),
    ("model", "llama", "found 'llama'"),
    ("model", np.array(["gpt2", "x"]), "model: expected"),
    ("pre", None, "pre: expected one of"),
    ("pre", "default", "pre: expected one of joyai-llm"),
    ("pre", ["joyai-llm"], "pre: expected one of"),
    ("tokens", None, "tokens: expected an array; found nothing"),
    ("tokens", "abc", "tokens: expected an array; found str"),
    ("tokens", {"a": 1}, "tokens: expected an array; found dict"),
    ("tokens", [], "expected 0 entries"),
    ("tokens", [*TOKENS[:-1], 7], "token 289: expected a string; found 7"),
    ("tokens", [*TOKENS[:-1], b"x"], "token 289: expected a string"),
    ("tokens", [*TOKENS[:-1], []], "token 289: expected a string"),
    ("tokens", [*TOKENS[:-1], ""], "token 289: expected a non-empty string"),
    ("tokens", [*TOKENS[:-1], "a"], "token 289: expected a string of its own"),
    ("tokens", [*TOKENS[:-1], "\ud800"], "lone surrogate"),
    ("tokens", ["x0", "x1", "x2", "x3", *TOKENS[4:]], "for byte 0x"),
    ("tokens", np.array([TOKENS]), "tokens: expected an array"),
    ("token_type", None, "token_type: expected an array"),
    ("token_type", TYPES[:-1], "token_type: expected 290 entries, one per token; found 289"),
    ("token_type", [*TYPES[:-1], 0], "token_type: expected integers from 1 to 6; found 0"),
    ("token_type", [*TYPES[:-1], 7], "token_type: expected integers from 1 to 6; found 7"),
    ("token_type", [*TYPES[:-1], -1], "token_type: expected integers"),
    ("token_type", [*TYPES[:-1], 1 << 70], "token_type: expected integers"),
    ("token_type", [*TYPES[:-1], "1"], "token_type: expected integers"),
    ("token_type", np.ones(290), "token_type: expected integers"),
    ("token_type", [3] * 290, "to be an ordinary byte token; found control"),
    ("merges", None, "merges: expected an array"),
    ("merges", ["a"], "merges\\[0\\]: expected 'left right'"),
    ("merges", ["a b c"], "merges\\[0\\]: expected 'left right'"),
    ("merges", [3], "merges\\[0\\]: expected 'left right'"),
    ("merges", [" a"], "merge 0 .* expected '' in the vocabulary"),
    ("merges", ["q zz"], "merge 0 .* expected 'zz' in the vocabulary"),
    ("merges", ["q z"], "merge 0 .* expected 'qz' in the vocabulary"),
    ("merges", ["h e", "h e"], "merges: expected each pair once; found .* 2 times"),
    ("bos_token_id", 290, "bos token id: expected one of the 290 tokens; found 290"),
    ("bos_token_id", -1, "bos token id: expected"),
    ("bos_token_id", "0", "bos_token_id: expected a token id; found '0'"),
    ("bos_token_id", True, "bos_token_id: expected a token id"),
    ("bos_token_id", 0.0, "bos_token_id: expected a token id"),
    ("eos_token_id", 1 << 32, "eos token id: expected"),
    ("eos_token_ids", [1, 900], "eos token id: expected"),
    ("eos_token_ids", [[1], [1, 2]], "eos_token_ids: expected a token id"),
    ("eot_token_id", "x", "eot_token_id: expected a token id"),
]


@pytest.mark.parametrize(("key", "value", "message"), BAD_METADATA)
def test_bad_metadata_is_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as raised:
        tokenizer_from_gguf({**GOOD, K + key: value}, "m.gguf")
    assert str(raised.value).startswith("m.gguf: ")


def test_a_merge_may_not_make_a_marker() -> None:
    tokens = [*TOKENS[:-2], "<th", "ink>"]
    with pytest.raises(
        ModelFormatError, match=r"merge 0 .* expected '<think>' to be ordinary; found user_defined"
    ):
        tokenizer_from_gguf({**GOOD, f"{K}tokens": tokens, f"{K}merges": ["<th ink>"]})


def test_byte_kind_tokens_stand_for_their_byte() -> None:
    tokens, types = [*TOKENS[:-1], "<0xE4>"], [*TYPES[:-1], 6]
    assert (
        tokenizer_from_gguf({**GOOD, f"{K}tokens": tokens, f"{K}token_type": types}).token_bytes(289)
        == b"\xe4"
    )


anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from(sorted(GOOD)), anything, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_arbitrary_values_never_crash(changes: dict[str, Any]) -> None:
    with suppress(ModelFormatError):
        tokenizer_from_gguf({**GOOD, **changes}).encode("hello")

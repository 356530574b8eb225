"""Streaming gives the same text as decoding at once, one whole character after another."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.tokenizer import Tokenizer
from penstock.tokenizer.byte_alphabet import to_alphabet
from tests.tokenizer.corpus import CORPUS, texts

fixtures_are_constant = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special: bool = False) -> list[str]:
    decoder = tokenizer.stream(skip_special)
    return [*(decoder.push(token_id) for token_id in ids), decoder.finish()]


@pytest.mark.parametrize("text", CORPUS)
def test_whole_characters_only(from_gguf: Tokenizer, text: str) -> None:
    pieces = streamed(from_gguf, from_gguf.encode(text))
    assert "".join(pieces) == text
    assert pieces[-1] == ""  # nothing was held back at the end of valid text


@given(text=texts)
@fixtures_are_constant
def test_byte_tokens_stream_to_the_same_text(from_gguf: Tokenizer, text: str) -> None:
    """The hardest split: one token per byte."""
    ids = [from_gguf.token_id(char) or 0 for char in to_alphabet(text.encode())]
    assert "".join(streamed(from_gguf, ids)) == from_gguf.decode(ids) == text


@given(
    ids=st.lists(st.one_of(st.integers(0, 300), st.integers(0, 129279), st.sampled_from([128803, 128821]))),
    skip_special=st.booleans(),
)
@fixtures_are_constant
def test_any_ids_stream_to_what_they_decode_to(
    from_gguf: Tokenizer, ids: list[int], skip_special: bool
) -> None:
    assert "".join(streamed(from_gguf, ids, skip_special)) == from_gguf.decode(ids, skip_special)


def test_a_character_appears_when_its_last_byte_does(from_gguf: Tokenizer) -> None:
    grin = [from_gguf.token_id(char) or 0 for char in "ðŁĺĢ"]  # the four bytes of U+1F600
    assert streamed(from_gguf, grin) == ["", "", "", "😀", ""]
    assert streamed(from_gguf, grin[:3]) == ["", "", "", "\ufffd"]


def test_a_finished_decoder_is_as_new(from_gguf: Tokenizer) -> None:
    decoder = from_gguf.stream()
    decoder.push(from_gguf.token_id("ð") or 0)
    assert decoder.finish() == "\ufffd"
    assert decoder.push(from_gguf.token_id("a") or 0) == "a"
    assert decoder.finish() == ""

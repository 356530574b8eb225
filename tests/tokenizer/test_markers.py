"""Text becomes a marker only when the caller asks: nobody types their way into a control token."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from penstock.tokenizer import Tokenizer
from tests.tokenizer.corpus import texts

# One of each shape, and their fragments, so that random joins meet at every border.
MARKERS = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>",
    "<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜/table>｜", "<dsml:", "</dsml:", "<｜image｜>",
    "<｜fim▁hole｜>",
]  # fmt: skip
FRAGMENTS = ["<", "</", "<｜", "｜>", "｜", "DSML", "User", "think", ">", "|>", "▁", "/table", " ", "\n", "7"]

marked_texts = st.lists(
    st.one_of(st.sampled_from(MARKERS), st.sampled_from(FRAGMENTS), texts), max_size=8
).map("".join)
fixtures_are_constant = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def marker_ids(tokenizer: Tokenizer) -> list[int]:
    return [token_id for token_id in range(tokenizer.vocab_size) if tokenizer.is_special(token_id)]


def test_every_marker_typed_as_text_stays_text(tokenizer: Tokenizer) -> None:
    ids = marker_ids(tokenizer)
    assert len(ids) == 1283
    for marker_id in ids:
        marker = tokenizer.decode([marker_id])
        for text in (marker, f"a{marker} b", marker + marker):
            typed = tokenizer.encode(text)
            assert not any(map(tokenizer.is_special, typed)), text
            assert tokenizer.decode(typed) == text
            assert tokenizer.decode(typed, skip_special=True) == text


def test_every_marker_asked_for_is_one_token(tokenizer: Tokenizer) -> None:
    for marker_id in marker_ids(tokenizer):
        marker = tokenizer.decode([marker_id])
        assert tokenizer.token_id(marker) == marker_id
        assert tokenizer.token_bytes(marker_id) == marker.encode()
        assert tokenizer.encode(marker, special=True) == [marker_id]
        assert tokenizer.decode([marker_id], skip_special=True) == ""


@given(text=marked_texts)
@fixtures_are_constant
def test_no_text_encodes_to_a_marker(from_gguf: Tokenizer, text: str) -> None:
    ids = from_gguf.encode(text)
    assert not any(map(from_gguf.is_special, ids))
    assert from_gguf.decode(ids, skip_special=True) == text


@given(text=marked_texts)
@fixtures_are_constant
def test_markers_asked_for_are_those_of_the_library(
    from_gguf: Tokenizer, from_json: Tokenizer, reference: LibraryTokenizer, text: str
) -> None:
    expected = reference.encode(text, add_special_tokens=False).ids
    assert from_gguf.encode(text, special=True) == expected
    assert from_json.encode(text, special=True) == expected
    assert from_gguf.decode(expected) == text

"""On DeepSeek's own vocabulary both routes give exactly the ids that the `tokenizers` library gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tokenizers import Tokenizer as LibraryTokenizer

from penstock.errors import OptionError, TokenError
from penstock.tokenizer import Tokenizer, TokenKind, tokenizer_from_gguf, tokenizer_to_gguf
from tests.tokenizer.corpus import CORPUS, texts


def library_ids(reference: LibraryTokenizer, text: str) -> list[int]:
    return list(reference.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", CORPUS)
def test_corpus_encodes_as_the_library_does(
    tokenizer: Tokenizer, reference: LibraryTokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    # The library always honours markers; none of the corpus holds one, so it must agree with us either way.
    assert ids == library_ids(reference, text)
    assert tokenizer.encode(text, special=True) == ids
    assert tokenizer.decode(ids) == text


@given(text=texts)
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_text_encodes_as_the_library_does(
    from_gguf: Tokenizer, from_json: Tokenizer, reference: LibraryTokenizer, text: str
) -> None:
    expected = library_ids(reference, text)
    assert from_gguf.encode(text, special=True) == expected
    assert from_json.encode(text, special=True) == expected
    assert from_gguf.decode(expected) == text


def test_every_token_decodes_as_the_library_does(from_gguf: Tokenizer, reference: LibraryTokenizer) -> None:
    for token_id in range(0, from_gguf.vocab_size, 7):
        expected = reference.decode([token_id], skip_special_tokens=False)
        assert from_gguf.decode([token_id]) == expected, token_id


def test_broken_utf8_decodes_as_the_library_does(from_gguf: Tokenizer, reference: LibraryTokenizer) -> None:
    family = from_gguf.encode("👩‍👩‍👧‍👦 é 世")
    byte_ids = [from_gguf.token_id(char) or 0 for char in "ðŁĺĢâĤ¬Ãÿ"]
    for ids in (family[:1], family[1:], byte_ids, byte_ids[:3], byte_ids[1:], byte_ids[::-1]):
        assert from_gguf.decode(ids) == reference.decode(ids, skip_special_tokens=False)


def test_ids_and_markers_come_from_the_files(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 129280
    assert tokenizer.bos_id == tokenizer.token_id("<｜begin▁of▁sentence｜>") == 0
    assert tokenizer.eos_ids == (tokenizer.token_id("<｜end▁of▁sentence｜>"),) == (1,)
    assert tokenizer.token_id("<｜User｜>") == 128803
    assert tokenizer.token_id("no such token") is None
    assert tokenizer.token_id("\ud800") is None
    assert tokenizer.token_bytes(128803) == "<｜User｜>".encode()
    assert tokenizer.token_bytes(tokenizer.token_id("Ġthe") or 0) == b" the"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "ok then \ud83d"])
@pytest.mark.parametrize("special", [False, True])
def test_lone_surrogates_are_refused(tokenizer: Tokenizer, text: str, special: bool) -> None:
    with pytest.raises(TokenError, match="surrogates not allowed"):
        tokenizer.encode(text, special=special)


@pytest.mark.parametrize("bad", [-1, 129280, 1 << 40, 1.5, "1", None])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, bad: Any) -> None:
    uses: list[Callable[[Any], object]] = [
        tokenizer.token_bytes,
        tokenizer.is_special,
        tokenizer.stream().push,
        lambda token_id: tokenizer.decode([token_id]),
    ]
    for use in uses:
        with pytest.raises(TokenError, match="token id: expected"):
            use(bad)


def test_numpy_ids_decode(tokenizer: Tokenizer) -> None:
    ids = np.array(tokenizer.encode("numpy ids 世界"), dtype=np.int64)
    assert tokenizer.decode(ids) == "numpy ids 世界"


def test_padding_fills_up_to_the_embedding_rows(real_json: Path, from_gguf: Tokenizer) -> None:
    metadata = tokenizer_to_gguf(from_gguf, vocab_size=129300)
    padded = tokenizer_from_gguf(metadata)
    assert padded.vocab_size == 129300
    assert padded.decode([129299]) == "[PAD129299]"
    assert metadata["tokenizer.ggml.token_type"][-1] == TokenKind.UNUSED
    assert padded.encode("[PAD129299]", special=True) == from_gguf.encode("[PAD129299]")
    with pytest.raises(OptionError, match="expected at least the 129280"):
        tokenizer_to_gguf(real_json, vocab_size=129279)


def test_writing_what_was_read_changes_nothing(real_metadata: dict[str, Any], from_gguf: Tokenizer) -> None:
    assert tokenizer_to_gguf(from_gguf) == real_metadata


def test_numpy_metadata_is_read_too(real_metadata: dict[str, Any], from_gguf: Tokenizer) -> None:
    metadata = dict(real_metadata)
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], dtype=np.int32)
    metadata["tokenizer.ggml.eos_token_id"] = np.uint32(1)
    metadata["tokenizer.ggml.eos_token_ids"] = np.array([1, 128805], dtype=np.uint64)
    metadata["tokenizer.ggml.eot_token_id"] = np.int64(2)
    rebuilt = tokenizer_from_gguf(metadata)
    assert rebuilt.eos_ids == (1, 128805, 2)
    assert rebuilt.kinds == from_gguf.kinds


@pytest.mark.slow
def test_a_panic_of_the_library_is_an_error_and_leaves_the_tokenizer_usable(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenError, match="cannot be encoded"):
        tokenizer.encode(" " * 11_000_000 + "x")  # over the regex library's retry limit
    assert tokenizer.decode(tokenizer.encode("still here")) == "still here"

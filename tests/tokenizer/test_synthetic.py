"""The made-up vocabulary: any text in, readable text out, at any size."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings

from penstock.errors import OptionError
from penstock.tokenizer import (
    MIN_BYTE_VOCABULARY,
    byte_tokenizer_metadata,
    tokenizer_from_gguf,
    tokenizer_to_gguf,
)
from tests.tokenizer.corpus import texts

SMALL = tokenizer_from_gguf(byte_tokenizer_metadata(512))


@given(text=texts)
@settings(max_examples=100, deadline=None)
def test_any_text_round_trips(text: str) -> None:
    ids = SMALL.encode(text)
    assert SMALL.decode(ids) == text
    assert not any(map(SMALL.is_special, ids))
    assert max(ids, default=0) < MIN_BYTE_VOCABULARY  # the filler words are out of reach


def test_merges_are_used() -> None:
    assert [SMALL.token_bytes(token_id) for token_id in SMALL.encode(" the king")] == [
        b" the",
        b" ",
        b"k",
        b"ing",
    ]


def test_filler_words_are_readable_and_unreachable() -> None:
    words = [SMALL.decode([token_id]) for token_id in range(MIN_BYTE_VOCABULARY, SMALL.vocab_size)]
    assert words[:3] == [" baba", " babe", " babi"]
    assert len(set(words)) == len(words)
    for word in words:
        assert len(SMALL.encode(word)) > 1
        assert SMALL.encode(word, special=True) == SMALL.encode(word)


def test_markers() -> None:
    assert (SMALL.bos_id, SMALL.eos_ids) == (0, (1,))
    assert SMALL.decode([0, 1, 2]) == "<｜begin▁of▁sentence｜><｜end▁of▁sentence｜><｜▁pad▁｜>"
    for marker in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"):
        assert SMALL.encode(marker, special=True) == [SMALL.token_id(marker)]
        assert SMALL.decode(SMALL.encode(marker), skip_special=True) == marker


@pytest.mark.parametrize("size", [MIN_BYTE_VOCABULARY, MIN_BYTE_VOCABULARY + 1, 6000, 129280])
def test_every_size_is_filled_exactly(size: int) -> None:
    metadata = byte_tokenizer_metadata(size)
    assert tokenizer_from_gguf(metadata).vocab_size == size
    assert len(set(metadata["tokenizer.ggml.tokens"])) == size


def test_too_small_is_refused() -> None:
    with pytest.raises(OptionError, match=f"expected at least {MIN_BYTE_VOCABULARY}"):
        byte_tokenizer_metadata(MIN_BYTE_VOCABULARY - 1)


def test_it_is_written_back_unchanged() -> None:
    assert tokenizer_to_gguf(SMALL) == byte_tokenizer_metadata(512)


def test_it_survives_a_real_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    metadata = byte_tokenizer_metadata(300)
    writer = gguf.GGUFWriter(path, "deepseek4")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = gguf.GGUFReader(path).fields
    read = {key: fields[key].contents() for key in metadata}
    read["tokenizer.ggml.token_type"] = np.array(read["tokenizer.ggml.token_type"])
    assert tokenizer_to_gguf(tokenizer_from_gguf(read)) == metadata

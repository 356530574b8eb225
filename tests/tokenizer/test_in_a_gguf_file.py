"""The real DeepSeek vocabulary through a GGUF file that we wrote: the same ids come out."""

from typing import Any

import pytest
from tokenizers import Tokenizer as Library

from penstock.tokenizer import Tokenizer, tokenizer_from_gguf
from penstock.weights.gguf_reader import read_gguf
from penstock.weights.gguf_writer import write_gguf

TEXT = """The quick brown fox; 1234567890 3.14159 0x1F 1_000_000 — “quotes”, naïve café, ½ ∑∫ €£¥ ~tilde~
def f(x: int) -> str:\n\treturn f"{x!r}"  # коментар по-русски 日本語テキスト混在 한국어 العربية עברית हिन्दी ไทย
👩‍👩‍👧‍👦 🇫🇷🏳️‍🌈 emoji\r\n\r\n   spaces\t\ttabs\n\n\n<｜User｜>not a marker</think> ｜DSML｜ 北京2024年
ÀÉÎ e\u0301 \u200b zero width"""


@pytest.fixture(scope="module")
def stored(real_metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "v.gguf"
    write_gguf(path, real_metadata, [])
    return tokenizer_from_gguf(read_gguf(path).metadata, str(path))


def test_identical_ids_and_text(stored: Tokenizer, reference: Library) -> None:
    assert stored.encode(TEXT, special=True) == reference.encode(TEXT, add_special_tokens=False).ids
    plain = TEXT.replace("<｜User｜>", "").replace("</think>", "").replace("｜DSML｜", "")
    assert stored.encode(plain) == reference.encode(plain, add_special_tokens=False).ids
    assert stored.decode(stored.encode(TEXT)) == TEXT


def test_streaming_across_characters(stored: Tokenizer) -> None:
    decoder = stored.stream()
    pieces = [decoder.push(token) for token in stored.encode(TEXT)]
    assert "".join(pieces) + decoder.finish() == TEXT
    assert "" in pieces  # some tokens end in the middle of a character
    assert not any("\ufffd" in piece for piece in pieces)

"""The splits themselves, without a vocabulary: where text is cut decides which merges can happen."""

import json

import pytest

from penstock.errors import ModelFormatError
from penstock.tokenizer.byte_alphabet import from_alphabet, to_alphabet
from penstock.tokenizer.pretokenizers import PRE_TOKENIZERS, pre_tokenizer_by_name, pre_tokenizer_name


def pieces(name: str, text: str) -> list[str]:
    cut = pre_tokenizer_by_name(name, "test").pre_tokenize_str(text)
    return [from_alphabet(piece).decode() for piece, _ in cut]


@pytest.mark.parametrize("name", ["joyai-llm", "deepseek-v3"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1234567 8", ["123", "456", "7", " ", "8"]),
        ("hello world", ["hello", " world"]),
        ("a  b", ["a", " ", " b"]),
        ("漢字かなカナabc", ["漢字かなカナ", "abc"]),
        ("x=.foo .bar", ["x", "=.", "foo", " .", "bar"]),
        ("~a b~", ["~a", " b", "~"]),
        ("wait…\n\nok", ["wait", "…\n\n", "ok"]),
        ("x \r\n  y", ["x", " \r\n", " ", " y"]),
        ("“é”", ["“", "é", "”"]),
    ],
)
def test_deepseek_splits(name: str, text: str, expected: list[str]) -> None:
    assert pieces(name, text) == expected


def test_gpt2_splits() -> None:
    assert pieces("gpt-2", "I'll pay 1234 now") == ["I", "'ll", " pay", " 1234", " now"]


def test_names_are_recognised_from_the_splits() -> None:
    assert pre_tokenizer_name(PRE_TOKENIZERS["gpt-2"](), "test") == "gpt-2"
    assert pre_tokenizer_name(PRE_TOKENIZERS["deepseek-v3"](), "test") == "joyai-llm"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelFormatError, match="joyai-llm, deepseek-v3, gpt-2; found 'llama-bpe'"):
        pre_tokenizer_by_name("llama-bpe", "m.gguf: tokenizer.ggml.pre")


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    for byte in range(128):  # one byte per character; the rest appear inside the two-byte ones
        [(piece, _)] = PRE_TOKENIZERS["joyai-llm"]().pre_tokenize_str(chr(byte))
        assert piece == to_alphabet(bytes([byte]))
    for code in range(128, 0x800):
        cut = PRE_TOKENIZERS["joyai-llm"]().pre_tokenize_str(chr(code))
        assert "".join(piece for piece, _ in cut) == to_alphabet(chr(code).encode())
    assert len(set(to_alphabet(bytes(range(256))))) == 256
    assert json.loads(json.dumps(to_alphabet(bytes(range(256))))).isprintable()

"""The pocket vocabulary: reads back what it wrote, one token per digit, DeepSeek's markers in their places."""

import itertools
from pathlib import Path

import pytest

from penstock.tokenizer import Tokenizer, tokenizer_from_json, tokenizer_to_gguf
from pocket.data import conversations
from pocket.vocabulary import BOS, EOS, MARKERS, PAD, SIZE, text_of, train, write


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    write(path, train(characters=3_000_000))
    return tokenizer_from_json(path)


def test_text_comes_back(tokenizer: Tokenizer) -> None:
    characters = tokens = 0
    for conversation in itertools.islice(conversations(77), 200):
        for text in text_of(conversation):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            characters, tokens = characters + len(text), tokens + len(ids)
    assert tokenizer.decode(tokenizer.encode("naïve 日本 🙂\n\t x")) == "naïve 日本 🙂\n\t x"
    print(f"{characters / tokens:.2f} characters per token")


def test_each_digit_is_one_token(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("8675309")) == 7
    assert all(sum(map(str.isdigit, token)) <= 1 for token in tokenizer.tokens() if token.isascii())


def test_markers_have_the_ids_of_deepseek(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == SIZE
    assert [tokenizer.token_id(marker) for marker in (BOS, EOS, PAD)] == [0, 1, 2]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (1,))
    for marker in MARKERS:
        assert len(tokenizer.encode(marker, special=True)) == 1


def test_it_goes_into_a_gguf_file(tokenizer: Tokenizer) -> None:
    assert tokenizer_to_gguf(tokenizer)["tokenizer.ggml.pre"] == "joyai-llm"


def test_training_is_deterministic(tmp_path: Path) -> None:
    paths = [tmp_path / name / "tokenizer.json" for name in ("a", "b")]
    for path in paths:
        write(path, train(size=600, characters=200_000))
    assert paths[0].read_bytes() == paths[1].read_bytes()

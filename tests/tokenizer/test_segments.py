"""Long texts are encoded part by part: with the tokens of the whole, and no further than they can matter."""

import random
import threading
from typing import Any

import pytest

from penstock.errors import ContextLengthError, TokenError
from penstock.tokenizer import Tokenizer, byte_tokenizer_metadata, tokenizer, tokenizer_from_gguf
from penstock.tokenizer.gguf import PRE
from penstock.tokenizer.pretokenizers import PRE_TOKENIZERS

LETTERS = [
    "a",
    "Word",
    "é",
    " ",
    "  ",
    "\n",
    " \n ",
    "x ",
    "7",
    "1234",
    "'s",
    "!",
    " !",
    "世界",
    "\u0301",
    "\t",
    "🙂",
    "слово",
    "ё",
    "한국",
    "かな",
    "ー",
    "，",
    "。",
    "½",
    "ก",
    "ั",
    "\r\n",
    "\x1c",
    "\0",
    "<|EOT|>",
]


@pytest.fixture(params=sorted(PRE_TOKENIZERS))
def made(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_from_gguf(byte_tokenizer_metadata(4096) | {PRE: request.param})


def test_parts_have_the_tokens_of_the_whole(made: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(1)
    for _ in range(300):
        text = "".join(choose.choices(LETTERS, k=60))
        monkeypatch.setattr(tokenizer, "_SEGMENT", 1 << 15)
        whole = made.encode(text)
        monkeypatch.setattr(tokenizer, "_SEGMENT", 5)
        assert made.encode(text) == whole, repr(text)


def test_parts_do_not_cut_markers(made: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    markers = [token for id, token in enumerate(made.tokens()) if made.is_special(id)]
    choose = random.Random(1)
    for _ in range(100):
        text = "".join(choose.choices([*LETTERS, *markers], k=60))
        monkeypatch.setattr(tokenizer, "_SEGMENT", 1 << 15)
        whole = made.encode(text, special=True)
        monkeypatch.setattr(tokenizer, "_SEGMENT", 5)
        assert made.encode(text, special=True) == whole, repr(text)


@pytest.mark.parametrize(
    "text",
    [
        "word " * 30_000,
        "слово, " * 30_000,
        "汉字，" * 50_000,
        "line\n" * 40_000,
        "aB3+/x9" * 30_000,
        "༼་\n" * 50_000,
    ],
    ids=["words", "cyrillic", "chinese", "lines", "base64", "tibetan"],
)
def test_what_people_write_can_be_cut(made: Tokenizer, text: str) -> None:
    counting = Counting(made._plain)
    made._plain = counting  # type: ignore[assignment]
    made.encode(text)
    assert counting.longest < tokenizer._SEGMENT + 100


def test_a_text_without_words_has_a_limit(made: Tokenizer) -> None:
    made.longest_unbroken = 1 << 16
    made.encode("a" * (1 << 16))
    made.encode("a " * (1 << 16))
    with pytest.raises(TokenError, match="65,536 bytes without the end of a word"):
        list(made.encode_parts("🙂" * (1 << 15)))


class Counting:
    """The library's tokenizer, with a record of what it was asked for."""

    def __init__(self, inner: Any):
        self.inner, self.characters, self.longest = inner, 0, 0

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.longest = max(self.longest, *map(len, texts))
        self.characters += sum(map(len, texts))
        return self.inner.encode_batch_fast(texts, **options)


@pytest.mark.parametrize("text", ["word " * 1_000_000, "a" * 5_000_000], ids=["words", "one word"])
def test_what_must_exceed_a_limit_is_refused_early(
    made: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest, counting = made.longest, Counting(made._plain)
    monkeypatch.setattr(made, "_plain", counting)
    with pytest.raises(ContextLengthError, match="room for 100"):
        made.encode(text, most=100)
    assert counting.characters < 100 * longest + 2 * tokenizer._SEGMENT


def test_what_may_fit_is_not_refused(made: Tokenizer) -> None:
    text = "word and word " * 20
    count = len(made.encode(text))
    assert len(made.encode(text, most=count)) == count
    with pytest.raises(ContextLengthError):
        made.encode(text, most=10, before=10)


def test_other_threads_run_meanwhile(made: Tokenizer) -> None:
    """Those that have nothing to do but count, while a single word is encoded that cannot be cut."""
    over, count = threading.Event(), 0

    def encode() -> None:
        made.encode("ab" * 300_000)
        over.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not over.wait(0.001):
        count += 1
    thread.join()
    assert count > 5

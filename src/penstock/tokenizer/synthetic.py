"""A small made-up vocabulary for synthetic models: any text encodes, and any id decodes to readable text."""

from typing import Any

from penstock.errors import OptionError
from penstock.tokenizer.byte_alphabet import CHAR_OF_BYTE, to_alphabet
from penstock.tokenizer.gguf import ADD_BOS, BOS, EOS, MERGES, MODEL, PRE, TOKEN_TYPE, TOKENS
from penstock.tokenizer.vocabulary import TokenKind

_SENTENCE_MARKERS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")  # ids 0, 1, 2
_CONTROL_MARKERS = (
    "<｜System｜>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<|EOT|>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜extracted_url｜>",
    "<｜read_url｜>",
)
_USER_DEFINED_MARKERS = ("<think>", "</think>", "｜DSML｜")

# Real merges of English: llama.cpp refuses a file without any.
_MERGES = ("Ġ t", "Ġ a", "i n", "h e", "Ġt he", "in g")

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"

MIN_BYTE_VOCABULARY = (
    len(_SENTENCE_MARKERS) + 256 + len(_MERGES) + len(_CONTROL_MARKERS) + len(_USER_DEFINED_MARKERS)
)
"""The smallest `vocab_size` that `byte_tokenizer_metadata` can fill."""


def byte_tokenizer_metadata(vocab_size: int) -> dict[str, Any]:
    """GGUF metadata of a byte tokenizer with DeepSeek's markers, padded to `vocab_size` with made-up words.

    The words are ordinary tokens that no merge reaches: encoding never gives one, but a model with random
    weights may, and then prints as syllables instead of noise.
    """
    if vocab_size < MIN_BYTE_VOCABULARY:
        raise OptionError(
            f"vocab_size: expected at least {MIN_BYTE_VOCABULARY}, the bytes and markers; found {vocab_size}"
        )
    merged = [merge.replace(" ", "") for merge in _MERGES]
    words = [_word(index) for index in range(vocab_size - MIN_BYTE_VOCABULARY)]
    groups = [
        (_SENTENCE_MARKERS, TokenKind.CONTROL),
        (CHAR_OF_BYTE.values(), TokenKind.NORMAL),
        (merged, TokenKind.NORMAL),
        (_CONTROL_MARKERS, TokenKind.CONTROL),
        (_USER_DEFINED_MARKERS, TokenKind.USER_DEFINED),
        (words, TokenKind.NORMAL),
    ]
    return {
        MODEL: "gpt2",
        PRE: "joyai-llm",
        TOKENS: [token for tokens, _ in groups for token in tokens],
        TOKEN_TYPE: [int(kind) for tokens, kind in groups for _ in tokens],
        MERGES: list(_MERGES),
        BOS: 0,
        EOS: 1,
        ADD_BOS: False,
    }


def _word(index: int) -> str:
    """The index-th word, of two syllables or more: `Ġbaba`, `Ġbabe`, … all distinct, with a leading space."""
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    length = 2
    while index >= len(syllables) ** length:
        index -= len(syllables) ** length
        length += 1
    word = ""
    for _ in range(length):
        index, digit = divmod(index, len(syllables))
        word = syllables[digit] + word
    return to_alphabet(f" {word}".encode())

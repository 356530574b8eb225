"""A tokenizer.json is followed where it can be, and refused with a message where it is damaged or foreign."""

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ModelFormatError
from penstock.tokenizer import byte_tokenizer_metadata, tokenizer_from_json, tokenizer_to_gguf

GOOD = byte_tokenizer_metadata(290)
K = "tokenizer.ggml."
TOKENS: list[str] = GOOD[f"{K}tokens"]
TYPES: list[int] = GOOD[f"{K}token_type"]


def small_json() -> dict[str, Any]:
    """A tokenizer.json of the made-up vocabulary."""
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = [
        {"id": index, "content": token, "special": True}
        for index, token in enumerate(TOKENS)
        if TYPES[index] != 1
    ]
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(TOKENS) if TYPES[index] == 1},
            "merges": [merge.split(" ") for merge in GOOD[f"{K}merges"]],
        },
    }


def write(folder: Path, content: Any, name: str = "tokenizer.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_other_regexes_are_followed_but_have_no_gguf_name(tmp_path: Path) -> None:
    path = write(tmp_path, small_json())
    tokenizer = tokenizer_from_json(path)
    assert tokenizer.decode(tokenizer.encode("the 12 things")) == "the 12 things"
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (None, ())
    with pytest.raises(
        ModelFormatError, match=r"tokenizer\.json: pre_tokenizer: expected the splits of one of"
    ):
        tokenizer_to_gguf(path)


def test_siblings_name_bos_and_eos(tmp_path: Path) -> None:
    path = write(tmp_path, small_json())
    write(tmp_path, {"bos_token": TOKENS[0], "eos_token": {"content": TOKENS[1]}}, "tokenizer_config.json")
    assert (tokenizer_from_json(path).bos_id, tokenizer_from_json(path).eos_ids) == (0, (1,))
    write(tmp_path, {"eos_token_id": 2}, "config.json")
    assert (tokenizer_from_json(path).bos_id, tokenizer_from_json(path).eos_ids) == (0, (2,))
    write(tmp_path, {"eos_token_id": [1, 2, 1], "bos_token_id": None}, "generation_config.json")
    assert (tokenizer_from_json(path).bos_id, tokenizer_from_json(path).eos_ids) == (0, (1, 2))


@pytest.mark.parametrize(
    "value", [{"eos_token_id": 290}, {"eos_token_id": "x"}, {"bos_token": "?!"}, [], "{"]
)
def test_bad_siblings_are_refused(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path, small_json())
    write(tmp_path, value, "tokenizer_config.json")
    with pytest.raises(ModelFormatError, match=r"\.json: "):
        tokenizer_from_json(path)


def set_at(*keys: str | int) -> Callable[[dict[str, Any], Any], None]:
    def change(content: dict[str, Any], value: Any) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


DEEP: Any = {"type": "ByteLevel"}
for _ in range(200):
    DEEP = {"type": "Sequence", "pretokenizers": [DEEP]}

BAD_JSON: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("normalizer",), {"type": "NFC"}, "normalizer: expected none"),
    (("pre_tokenizer",), None, "pre_tokenizer: expected a ByteLevel step"),
    (("pre_tokenizer",), {"type": "Whitespace"}, "pre_tokenizer: expected a ByteLevel step"),
    (("pre_tokenizer",), 3, "pre_tokenizer: "),
    (("pre_tokenizer",), DEEP, "pre_tokenizer: "),
    (("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"), "(", "pre_tokenizer: "),
    (("pre_tokenizer", "pretokenizers", 0, "behavior"), "Sideways", "pre_tokenizer: "),
    (("model",), None, "model.type: expected 'BPE'"),
    (("model", "type"), "Unigram", "model.type: expected 'BPE'; found 'Unigram'"),
    (("model", "byte_fallback"), True, "model.byte_fallback: expected none"),
    (("model", "vocab"), {}, "model.vocab: expected"),
    (("model", "vocab"), [], "model.vocab: expected"),
    (("model", "vocab", "a"), "5", "a token id below"),
    (("model", "vocab", "a"), -5, "a token id below"),
    (("model", "vocab", "a"), 1 << 60, "a token id below"),
    (("model", "vocab", "new"), 5, "token id 5: expected only"),
    (("model", "vocab", ""), 290, "token 290: expected a non-empty string"),
    (("model", "vocab", "\ud800"), 290, "lone surrogate"),
    (("model", "merges"), None, "model.merges: expected a list"),
    (("model", "merges"), [["a"]], "model.merges\\[0\\]: expected a pair"),
    (("model", "merges"), [["a", 1]], "model.merges\\[0\\]: expected a pair"),
    (("model", "merges"), [["q", "z"]], "expected 'qz' in the vocabulary"),
    (("added_tokens",), {}, "added_tokens: expected a list"),
    (("added_tokens", 0), "x", "added_tokens\\[0\\]: expected an object"),
    (("added_tokens", 0, "id"), None, "added_tokens\\[0\\].id: expected"),
    (("added_tokens", 0, "id"), 70, "token id 70: expected only"),
    (("added_tokens", 0, "content"), "a", "expected id .*, as in the model"),
    (("added_tokens", 0, "lstrip"), True, "added_tokens\\[0\\].lstrip: expected false"),
]


@pytest.mark.parametrize(("keys", "value", "message"), BAD_JSON)
def test_bad_json_is_refused(tmp_path: Path, keys: tuple[str | int, ...], value: Any, message: str) -> None:
    content = small_json()
    set_at(*keys)(content, copy.deepcopy(value))
    with pytest.raises(ModelFormatError, match=f"tokenizer.json: .*{message}"):
        tokenizer_from_json(write(tmp_path, content))


@pytest.mark.parametrize("text", ["", "[]", "{", "nul", '{"model"', "[" * 100_000, "\x00"])
def test_what_is_not_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: expected"):
        tokenizer_from_json(write(tmp_path, text))


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"missing\.json: cannot be read: No such file"):
        tokenizer_from_json(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(ModelFormatError, match=r"latin\.json: expected JSON"):
        tokenizer_from_json(tmp_path / "latin.json")


def test_unclaimed_ids_become_unused_tokens(tmp_path: Path) -> None:
    content = small_json()
    content["added_tokens"].append({"id": 300, "content": "<late>"})
    tokenizer = tokenizer_from_json(write(tmp_path, content))
    assert tokenizer.decode([299, 300]) == "[PAD299]<late>"
    assert not tokenizer.is_special(299)
    assert tokenizer.encode("<late>", special=True) == [300]


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
PLACES: list[tuple[str | int, ...]] = [
    *((key,) for key in small_json()),
    *(("model", key) for key in ("type", "vocab", "merges", "dropout", "ignore_merges")),
    *(("added_tokens", 0, key) for key in ("id", "content", "special", "normalized", "rstrip")),
    *(("pre_tokenizer", "pretokenizers", 0, key) for key in ("type", "pattern", "behavior", "invert")),
]


@given(keys=st.sampled_from(PLACES), value=anything)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_values_never_crash(tmp_path: Path, keys: tuple[str | int, ...], value: Any) -> None:
    content = small_json()
    set_at(*keys)(content, value)
    with suppress(ModelFormatError):
        tokenizer_from_json(write(tmp_path, content)).encode("hello")

"""A tokenizer as GGUF metadata: reading `tokenizer.ggml.*` and writing it."""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from penstock.errors import ModelFormatError, OptionError
from penstock.tokenizer.json_file import tokenizer_from_json
from penstock.tokenizer.messages import shown
from penstock.tokenizer.pretokenizers import pre_tokenizer_by_name, pre_tokenizer_name
from penstock.tokenizer.tokenizer import Tokenizer
from penstock.tokenizer.vocabulary import TokenKind, Vocabulary

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPE = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
BOS = "tokenizer.ggml.bos_token_id"
EOS = "tokenizer.ggml.eos_token_id"
ADD_BOS = "tokenizer.ggml.add_bos_token"

# Files name the ids that end a turn under one or several of these; any of them ends generation.
EOS_LIST = "tokenizer.ggml.eos_token_ids"
EOT = "tokenizer.ggml.eot_token_id"


def tokenizer_from_gguf(metadata: Mapping[str, Any], name: str = "GGUF file") -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describes; `name` stands for the file in errors."""
    model = metadata.get(MODEL)
    if not isinstance(model, str) or model != "gpt2":
        raise ModelFormatError(f"{name}: {MODEL}: expected 'gpt2'; found {shown(model)}")
    pre_tokenizer = pre_tokenizer_by_name(metadata.get(PRE), f"{name}: {PRE}")
    tokens = _sequence(metadata, TOKENS, name)
    vocabulary = Vocabulary(
        source=name,
        tokens=tokens,
        kinds=_kinds(metadata, len(tokens), name),
        merges=_merges(metadata, name),
        bos_id=_optional_id(metadata, BOS, name),
        eos_ids=_eos_ids(metadata, name),
    )
    return Tokenizer(vocabulary, pre_tokenizer)


def tokenizer_to_gguf(source: Tokenizer | Path, vocab_size: int | None = None) -> dict[str, Any]:
    """The metadata from which `tokenizer_from_gguf` rebuilds this tokenizer (or that of a tokenizer.json).

    With `vocab_size`, the number of embedding rows, the list is filled up to it with unused `[PAD<id>]`.
    """
    tokenizer = source if isinstance(source, Tokenizer) else tokenizer_from_json(source)
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    if size < tokenizer.vocab_size:
        raise OptionError(
            f"vocab_size: expected at least the {tokenizer.vocab_size} of {tokenizer.source}; found {size}"
        )
    padding = range(tokenizer.vocab_size, size)
    metadata: dict[str, Any] = {
        MODEL: "gpt2",
        PRE: pre_tokenizer_name(tokenizer.pre_tokenizer, f"{tokenizer.source}: pre_tokenizer"),
        TOKENS: tokenizer.tokens() + [f"[PAD{token_id}]" for token_id in padding],
        TOKEN_TYPE: [*tokenizer.kinds, *(int(TokenKind.UNUSED) for _ in padding)],
        MERGES: [f"{left} {right}" for left, right in tokenizer.merges()],
        ADD_BOS: False,  # the prompt format writes BOS itself
    }
    if tokenizer.bos_id is not None:
        metadata[BOS] = tokenizer.bos_id
    if tokenizer.eos_ids:
        metadata[EOS] = tokenizer.eos_ids[0]
    if len(tokenizer.eos_ids) > 1:
        metadata[EOS_LIST] = list(tokenizer.eos_ids)
    return metadata


def _sequence(metadata: Mapping[str, Any], key: str, name: str) -> Sequence[Any]:
    value = metadata.get(key)
    if not _is_array(value):
        found = "nothing" if value is None else type(value).__name__
        raise ModelFormatError(f"{name}: {key}: expected an array; found {found}")
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    return value


def _is_array(value: object) -> TypeGuard[Sequence[Any] | np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _kinds(metadata: Mapping[str, Any], count: int, name: str) -> bytes:
    values = _sequence(metadata, TOKEN_TYPE, name)
    if len(values) != count:
        raise ModelFormatError(
            f"{name}: {TOKEN_TYPE}: expected {count} entries, one per token; found {len(values)}"
        )
    try:
        kinds = bytes(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelFormatError(f"{name}: {TOKEN_TYPE}: expected integers from 1 to 6; {error}") from error
    for kind in set(kinds):
        if kind not in TokenKind.__members__.values():
            raise ModelFormatError(f"{name}: {TOKEN_TYPE}: expected integers from 1 to 6; found {kind}")
    return kinds


def _merges(metadata: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for rank, merge in enumerate(_sequence(metadata, MERGES, name)):
        parts = merge.split(" ") if isinstance(merge, str) else []
        if len(parts) != 2:
            raise ModelFormatError(f"{name}: {MERGES}[{rank}]: expected 'left right'; found {shown(merge)}")
        merges.append((parts[0], parts[1]))
    return merges


def _id(value: Any, key: str, name: str) -> int:
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ModelFormatError(f"{name}: {key}: expected a token id; found {shown(value)}") from None


def _optional_id(metadata: Mapping[str, Any], key: str, name: str) -> int | None:
    value = metadata.get(key)
    return None if value is None else _id(value, key, name)


def _eos_ids(metadata: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found: list[int] = []
    for key in (EOS, EOS_LIST, EOT):
        value = metadata.get(key)
        if _is_array(value):
            found += [_id(item, key, name) for item in _sequence(metadata, key, name)]
        elif value is not None:
            found.append(_id(value, key, name))
    return tuple(dict.fromkeys(found))

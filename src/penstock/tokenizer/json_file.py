"""A tokenizer as a `tokenizer.json`, with the beginning and end tokens that its sibling files name."""

import json
from pathlib import Path
from typing import Any

from penstock.errors import ModelFormatError
from penstock.tokenizer.messages import shown
from penstock.tokenizer.pretokenizers import pre_tokenizer_from_json
from penstock.tokenizer.tokenizer import Tokenizer
from penstock.tokenizer.vocabulary import TokenKind, Vocabulary

# Far above any real vocabulary; keeps one absurd id in a damaged file from filling the memory.
_MAX_TOKENS = 1 << 22

# Features of the format that byte-level BPE models do without, and that nothing here would honour.
_ABSENT_IN_MODEL = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
_ABSENT_IN_ADDED = ("single_word", "lstrip", "rstrip")

# The first of these that names an id decides: generation settings know all ids that end a turn.
_SIBLINGS = ("generation_config.json", "config.json", "tokenizer_config.json")


def tokenizer_from_json(path: Path) -> Tokenizer:
    """Build the tokenizer that a `tokenizer.json` describes, regexes included."""
    content = _read_object(path)
    normalizer = content.get("normalizer")
    if normalizer and not (isinstance(normalizer, dict) and normalizer.get("normalizers") == []):
        raise _error(path, "normalizer", "none, so that decoding gives back the text", normalizer)
    pre_tokenizer = pre_tokenizer_from_json(content.get("pre_tokenizer"), f"{path}: pre_tokenizer")
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise _error(path, "model.type", "'BPE'", model.get("type") if isinstance(model, dict) else model)
    for feature in _ABSENT_IN_MODEL:
        if model.get(feature):
            raise _error(path, f"model.{feature}", "none, as in byte-level BPE", model[feature])

    kind_of: dict[str, TokenKind] = {}
    ids = _model_ids(path, model.get("vocab"))
    for content_string, token_id, kind in _added_tokens(path, content.get("added_tokens")):
        if ids.setdefault(content_string, token_id) != token_id:
            raise _error(
                path,
                f"added token {content_string!r:.60}",
                f"id {ids[content_string]}, as in the model",
                token_id,
            )
        kind_of[content_string] = kind
    tokens = _in_id_order(path, ids)
    kinds = bytes(
        TokenKind.UNUSED if token not in ids else kind_of.get(token, TokenKind.NORMAL) for token in tokens
    )
    bos_ids = _sibling_ids(path.parent, "bos", ids)
    vocabulary = Vocabulary(
        source=str(path),
        tokens=tokens,
        kinds=kinds,
        merges=_merges(path, model.get("merges")),
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=_sibling_ids(path.parent, "eos", ids),
    )
    return Tokenizer(vocabulary, pre_tokenizer)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: expected JSON; {error}") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path}: expected a JSON object; found {type(content).__name__}")
    return content


def _model_ids(path: Path, vocab: Any) -> dict[str, int]:
    if not isinstance(vocab, dict) or not vocab:
        raise _error(path, "model.vocab", "an object of token ids", vocab)
    for token, token_id in vocab.items():
        _check_id(path, f"model.vocab[{token!r:.60}]", token_id)
    return vocab


def _added_tokens(path: Path, added: Any) -> list[tuple[str, int, TokenKind]]:
    if added is None:
        return []
    if not isinstance(added, list):
        raise _error(path, "added_tokens", "a list", added)
    result = []
    for index, token in enumerate(added):
        where = f"added_tokens[{index}]"
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise _error(path, where, "an object with a string 'content'", token)
        for feature in _ABSENT_IN_ADDED:
            if token.get(feature):
                raise _error(path, f"{where}.{feature}", "false", token[feature])
        _check_id(path, f"{where}.id", token.get("id"))
        is_control = token.get("special") is True or _is_bracketed(token["content"])
        kind = TokenKind.CONTROL if is_control else TokenKind.USER_DEFINED
        result.append((token["content"], token["id"], kind))
    return result


def _is_bracketed(marker: str) -> bool:
    """DeepSeek's file flags `<｜User｜>` as not special; converters go by its shape, and so do we."""
    return any(marker.startswith(f"<{bar}") and marker.endswith(f"{bar}>") for bar in "|｜")


def _check_id(path: Path, where: str, token_id: Any) -> None:
    if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < _MAX_TOKENS:
        raise _error(path, where, f"a token id below {_MAX_TOKENS}", token_id)


def _in_id_order(path: Path, ids: dict[str, int]) -> list[str]:
    """The token strings by id; ids that no token claims become unused `[PAD<id>]`."""
    claimed: list[str | None] = [None] * (max(ids.values()) + 1)
    for token, token_id in ids.items():
        if claimed[token_id] is not None:
            raise _error(
                path, f"token id {token_id}", f"only {claimed[token_id]!r:.60}", f"{token!r:.60} too"
            )
        claimed[token_id] = token
    return [f"[PAD{index}]" if token is None else token for index, token in enumerate(claimed)]


def _merges(path: Path, merges: Any) -> list[tuple[str, str]]:
    if not isinstance(merges, list):
        raise _error(path, "model.merges", "a list", merges)
    pairs: list[tuple[str, str]] = []
    for rank, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge  # both spellings are in use
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise _error(path, f"model.merges[{rank}]", "a pair of tokens", merge)
        pairs.append((parts[0], parts[1]))
    return pairs


def _sibling_ids(folder: Path, role: str, ids: dict[str, int]) -> tuple[int, ...]:
    """The `<role>_token_id` (one or a list) or `<role>_token` (a string) of the first file that has it."""
    for name in _SIBLINGS:
        path = folder / name
        if not path.is_file():
            continue
        settings = _read_object(path)
        value = settings.get(f"{role}_token_id")
        if value is not None:
            found = value if isinstance(value, list) else [value]
            for token_id in found:
                _check_id(path, f"{role}_token_id", token_id)
            return tuple(dict.fromkeys(found))
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None:
            if not isinstance(token, str) or token not in ids:
                raise _error(path, f"{role}_token", "a token of tokenizer.json", token)
            return (ids[token],)
    return ()


def _error(path: Path, where: str, expected: str, found: Any) -> ModelFormatError:
    return ModelFormatError(f"{path}: {where}: expected {expected}; found {shown(found)}")

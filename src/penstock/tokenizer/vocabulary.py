"""A vocabulary as files describe it, checked once, so that everything after it may rely on its laws."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.errors import ModelFormatError
from penstock.tokenizer.byte_alphabet import BYTE_OF_CHAR
from penstock.tokenizer.messages import shown


class TokenKind(IntEnum):
    """What a token is for; the numbers are those of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Markers: inserted on purpose, never the result of encoding ordinary text.
SPECIAL_KINDS = frozenset({TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.USER_DEFINED})


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order, their kinds, the merges in rank order, and the ids that open and end a text.

    `source` names the file for error messages.  `check` holds for every Vocabulary a Tokenizer is built from.
    """

    source: str
    tokens: Sequence[str]
    kinds: bytes
    merges: Sequence[tuple[str, str]]
    bos_id: int | None
    eos_ids: tuple[int, ...]

    def check(self) -> dict[str, int]:
        """Return the id of each token string, or raise ModelFormatError naming the first broken law.

        The laws: token strings are distinct, non-empty, valid Unicode; each byte has an ordinary token;
        merges join ordinary tokens into ordinary tokens (so no text becomes a marker); bos and eos exist.
        """
        ids = self._ids()
        self._check_bytes(ids)
        self._check_merges(ids)
        for name, token_id in [("bos", self.bos_id), *(("eos", eos) for eos in self.eos_ids)]:
            if token_id is not None and not 0 <= token_id < len(self.tokens):
                raise self._error(f"{name} token id", f"one of the {len(self.tokens)} tokens", token_id)
        return ids

    def _ids(self) -> dict[str, int]:
        if not self.tokens:
            raise self._error("tokens", "at least the 256 byte tokens", "an empty list")
        if len(self.kinds) != len(self.tokens):
            raise self._error("token types", f"one for each of {len(self.tokens)} tokens", len(self.kinds))
        ids: dict[str, int] = {}
        for token_id, token in enumerate(self.tokens):
            if not isinstance(token, str):
                raise self._error(f"token {token_id}", "a string", shown(token))
            if not token:
                raise self._error(f"token {token_id}", "a non-empty string", "an empty one")
            first = ids.setdefault(token, token_id)
            if first != token_id:
                raise self._error(
                    f"token {token_id}", "a string of its own", f"{token!r:.60}, token {first} too"
                )
        try:
            "".join(self.tokens).encode("utf-8")
        except UnicodeEncodeError as error:
            raise self._error("tokens", "valid Unicode", f"a lone surrogate ({error.reason})") from error
        return ids

    def _check_bytes(self, ids: dict[str, int]) -> None:
        for char, byte in BYTE_OF_CHAR.items():
            token_id = ids.get(char)
            if token_id is None:
                raise self._error("tokens", f"a token {char!r} for byte 0x{byte:02x}", "none")
            if self.kinds[token_id] != TokenKind.NORMAL:
                found = TokenKind(self.kinds[token_id]).name.lower()
                raise self._error(f"token {token_id}", f"{char!r} to be an ordinary byte token", found)

    def _check_merges(self, ids: dict[str, int]) -> None:
        # Merges carry over a hundred thousand entries: the loop only detects, `_broken_merge` explains.
        ordinary = {token for token, token_id in ids.items() if self.kinds[token_id] == TokenKind.NORMAL}
        for rank, (left, right) in enumerate(self.merges):
            if left not in ordinary or right not in ordinary or left + right not in ordinary:
                raise self._broken_merge(rank, ids)
        if len(set(self.merges)) != len(self.merges):
            (pair, count), *_ = Counter(self.merges).most_common(1)
            raise self._error("merges", "each pair once", f"{pair} {count} times")

    def _broken_merge(self, rank: int, ids: dict[str, int]) -> ModelFormatError:
        left, right = self.merges[rank]
        for part in (left, right, left + right):
            if part not in ids:
                return self._error(
                    f"merge {rank} ({left!r} + {right!r})", f"{part!r:.60} in the vocabulary", "no such token"
                )
            kind = TokenKind(self.kinds[ids[part]])
            if kind != TokenKind.NORMAL:
                return self._error(
                    f"merge {rank} ({left!r} + {right!r})", f"{part!r:.60} to be ordinary", kind.name.lower()
                )
        raise AssertionError("called for a merge that is fine")

    def _error(self, what: str, expected: str, found: object) -> ModelFormatError:
        return ModelFormatError(f"{self.source}: tokenizer {what}: expected {expected}; found {found}")

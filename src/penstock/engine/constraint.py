"""Holding what is sampled to a grammar: which tokens may come next.

Grammars are llguidance's: its Lark dialect, with JSON schemas in it.  They speak of bytes, so whichever tokens a
model likes to spell a text with, it may; an answer that fits by itself is not changed.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import OptionError
from penstock.tokenizer import Tokenizer

if TYPE_CHECKING:  # imported where it is used: an engine that holds nobody to a grammar can do without
    from llguidance import LLMatcher, LLTokenizer

Logits = NDArray[np.float32]
Finishing = dict[bytes, NDArray[np.int64]]  # see `Constraints.finishing`

KEPT: Final = 64  # compiled grammars; an agent sends the same tools with every request
KEPT_TEXT: Final = 1 << 18  # their characters, unless less is asked for
COMPILED: Final = 512  # bytes that a compiled grammar takes for each of its characters, at most
LONGEST: Final = 1 << 20  # characters of a grammar, and four times what may be kept, if that is less
MOST_STATES: Final = 50_000  # of a lexer: 100 MB at most
_PLACE: Final = re.compile(r"\n\s*\d+ \| ")  # before a line of the grammar
_TAIL: Final = 64  # bytes; longer than any text that matters
_MARKER: Final = b"\0"  # stands for a marker in the text before a token
_NONE: Final = np.empty(0, np.int64)


class GrammarError(OptionError):
    """A grammar that cannot be used.  Whoever made it knows which field of a request is to blame."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must be.  `never`: what ordinary tokens may not spell in it, because it is a marker's text."""

    text: str
    never: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """How an answer is held.

    start     its grammar from the first token on; if there is none, it is free at first
    triggers  the grammar of all that follows a token, for free answers: the first such token counts
    where     what the text before such a token must be, since the last special token: elsewhere it may not come
    after     a token that must have come before one counts; until then it is like any other
    gates     tokens that may come in free text only where it ends with one of these
    may_end   a free answer may end without a trigger
    never     what ordinary tokens may not spell in free text
    begun     text that the answer begins with already
    """

    start: Grammar | None = None
    triggers: Mapping[int, Grammar] = field(default_factory=dict)
    where: re.Pattern[bytes] | None = None
    after: int | None = None
    gates: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    may_end: bool = True
    never: tuple[bytes, ...] = ()
    begun: str = ""


class Constraints:
    """Makes constraints for one vocabulary.  Safe to share between threads.

    What llguidance has to know of the vocabulary is made at the first use: half a second for 129,280 tokens.
    kept: characters of grammars that stay compiled.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Collection[int], kept: int = KEPT_TEXT):
        self.tokenizer, self.eos_ids = tokenizer, tuple(sorted(eos_ids))
        self.kept, self.longest = kept, min(LONGEST, 4 * kept)
        self._lock = threading.Lock()
        self._tokens: list[bytes] = []
        self._vocabulary: LLTokenizer | None = None
        self._finishing: dict[bytes, Finishing] = {}
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def constrain(self, rules: Rules) -> Constraint:
        """What holds one answer to `rules`; GrammarError if a grammar cannot be used."""
        start = None if rules.start is None else self.matcher(rules.start.text)
        if start is not None and rules.begun and not start.consume_tokens(self.tokenizer.encode(rules.begun)):
            raise OptionError("messages: what the answer begins with does not fit its form")
        triggers = {token: self.matcher(grammar.text) for token, grammar in rules.triggers.items()}
        grammars = [*rules.triggers.values(), *([rules.start] if rules.start else [])]
        never = {*rules.never, *(text for grammar in grammars for text in grammar.never)}
        return Constraint(self, rules, start, triggers, {text: self.finishing(text) for text in never})

    def matcher(self, grammar: str) -> LLMatcher:
        """A new reader of this grammar; GrammarError if it cannot be used."""
        with self._lock:
            found = self._compiled.pop(grammar, None)
        if found is None:
            found = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = found
            while len(self._compiled) > KEPT or sum(map(len, self._compiled)) > max(self.kept, len(grammar)):
                self._compiled.popitem(last=False)
        return found.deep_copy()

    def _compile(self, grammar: str) -> LLMatcher:
        if len(grammar) > self.longest:
            raise GrammarError(
                f"too large: {len(grammar):,} characters as a grammar, at most {self.longest:,}"
            )
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(max_lexer_states=MOST_STATES, verbose_errors=False)
        matcher = LLMatcher(self._known(), grammar, log_level=0, limits=limits)
        matcher.compute_bitmask()  # some faults show only when it is used
        if matcher.is_error():
            raise GrammarError(_reason(matcher.get_error()))
        return matcher

    def _known(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                if not self.eos_ids:
                    raise GrammarError("the model names no token that ends a text")
                self._tokens = [self.tokenizer.token_bytes(id) for id in range(self.tokenizer.vocab_size)]
                from llguidance import LLTokenizer, TokenizerWrapper

                wrapped = TokenizerWrapper(_Vocabulary(self.tokenizer, self._tokens, self.eos_ids[0]))
                self._vocabulary = LLTokenizer(wrapped, eos_token=list(self.eos_ids))
            return self._vocabulary

    def finishing(self, text: bytes) -> Finishing:
        """The ordinary tokens that begin with an end of `text`, by that end: they complete it where the rest stands
        before them.  Those that have all of it within go by b""."""
        self._known()
        with self._lock:
            if text not in self._finishing:
                found: dict[bytes, list[int]] = {}
                for id, token in enumerate(self._tokens):
                    if text[-1:] not in token or self.tokenizer.is_special(id):
                        continue
                    for end in (text[at:] for at in range(1, len(text))):
                        if token.startswith(end):
                            found.setdefault(end, []).append(id)
                    if text in token:
                        found.setdefault(b"", []).append(id)
                self._finishing[text] = {end: np.array(ids) for end, ids in found.items()}
            return self._finishing[text]


class Constraint:
    """One answer's state.  `mask` says what may come next, `accept` what has come."""

    def __init__(
        self,
        constraints: Constraints,
        rules: Rules,
        start: LLMatcher | None,
        triggers: Mapping[int, LLMatcher],
        finishing: Mapping[bytes, Finishing],
    ):
        self._rules, self._tokenizer, self._eos = rules, constraints.tokenizer, constraints.eos_ids
        self._matcher, self._triggers = start, triggers
        self._finishing = finishing
        self._never = rules.start.never if rules.start else rules.never
        self._tail = rules.begun.encode()[-_TAIL:]  # the text since the last marker, as far as it matters
        self._awaited = rules.after

    @property
    def free(self) -> bool:
        """No grammar applies yet."""
        return self._matcher is None

    def mask(self, logits: Logits) -> Logits:
        """logits [vocab] → a copy with what may not come at −∞; the very same array if everything may"""
        banned = self._spelling()
        if self._matcher is None:
            banned = np.concatenate([banned, self._out_of_place()])
            masked = logits.copy() if banned.size else logits
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check(self._matcher)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: logits.size])
            masked = np.full_like(logits, -np.inf)
            masked[allowed] = logits[allowed]
            if banned.size and np.isin(allowed, banned).all():
                return masked  # the grammar itself demands that text
        if banned.size:
            masked[banned] = -np.inf
        return masked

    def bits(self, vocab_size: int) -> NDArray[np.uint32] | None:
        """What `mask` leaves, as bits, lowest first; None if everything may come"""
        banned = self._spelling()
        if self._matcher is None:
            banned = np.concatenate([banned, self._out_of_place()])
            if not banned.size:
                return None
            allowed = np.ones(vocab_size, np.bool_)
        else:
            packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check(self._matcher)
            allowed = np.unpackbits(packed, bitorder="little")[:vocab_size].astype(np.bool_)
            if banned.size and np.isin(np.flatnonzero(allowed), banned).all():
                banned = _NONE  # the grammar itself demands that text
        allowed[banned] = False
        padded = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
        padded[:vocab_size] = allowed[:vocab_size]
        return np.packbits(padded, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        """`token` was sampled."""
        special = self._tokenizer.is_special(token)
        self._tail = _MARKER if special else (self._tail + self._tokenizer.token_bytes(token))[-_TAIL:]
        if token == self._awaited:
            self._awaited, self._tail = None, b""
        if self._matcher is not None:
            self._matcher.consume_token(token)
            self._check(self._matcher)
        elif token in self._triggers and self._awaited is None:
            self._matcher, self._never = self._triggers[token], self._rules.triggers[token].never

    def _spelling(self) -> NDArray[np.int64]:
        """Tokens that would complete a text that may not be spelled."""
        banned = []
        for text in self._never:
            ends = self._finishing[text]
            if b"" in ends:
                banned.append(ends[b""])
            banned += [
                ids for end, ids in ends.items() if end and self._tail.endswith(text[: len(text) - len(end)])
            ]
        return np.concatenate(banned) if banned else _NONE

    def _out_of_place(self) -> NDArray[np.int64]:
        gated = [token for token, places in self._rules.gates.items() if not self._tail.endswith(places)]
        if self._awaited is None and self._rules.where and not self._rules.where.fullmatch(self._tail):
            gated += self._triggers
        return np.array([*gated, *(() if self._rules.may_end else self._eos)], np.int64)

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise OptionError(f"the answer cannot be held to its form: {_reason(matcher.get_error())}")


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], eos_id: int):
        self._tokenizer, self.tokens, self.eos_token_id = tokenizer, tokens, eos_id
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [id for id in range(len(tokens)) if tokenizer.is_special(id)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", errors="replace"))


def _reason(message: str) -> str:
    """A message in one line, without the place in a grammar that no client has seen."""
    said = _PLACE.split(message)[0].split("failed to compile JSON schema: ")[-1]
    said = " ".join(said.replace("<non-verbose/>", "").split())[:300]
    return "nothing fits it" if said.startswith("NoExtension") else said

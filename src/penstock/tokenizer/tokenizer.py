"""Text to token ids and back: byte-level BPE, with markers only where the caller asks for them."""

import json
import operator
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from penstock.errors import ContextLengthError, ModelFormatError, TokenError
from penstock.tokenizer.byte_alphabet import from_alphabet
from penstock.tokenizer.guard import library_errors_as
from penstock.tokenizer.pretokenizers import is_known
from penstock.tokenizer.stream import StreamDecoder
from penstock.tokenizer.vocabulary import SPECIAL_KINDS, TokenKind, Vocabulary

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SEGMENT = (
    1 << 14
)  # characters that are encoded at a time: the library takes up to 250 bytes for each of their bytes
# Words that the library remembers the tokens of.  One may take 8 KB, so that its own 10,000 would be 80 MB.
_REMEMBERED = 1024
# Letters of scripts in wide use; no combining marks.
_LETTERS = "A-Za-zÀ-ÖØ-öø-ɏΑ-ΡΣ-Ωα-ωА-яЁёא-תء-غف-يक-हก-ะぁ-んァ-ヶ一-龥가-힣"
# Every known pre-tokenizer cuts here, whatever is around it: at the end of a word, between letters and digits, after
# a line.
_CUT = re.compile(
    rf"[{_LETTERS}](?=[\0-/:-@\[-`{{-\x7f，。！？；：、])|[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])|(?<=\S)\n(?=\S)"
)
_CUT_AMONG_MARKERS = re.compile(r"[A-Za-z](?= )")  # not within one of them, unless it is an odd one

# One text at a time needs no pool of threads; the library reads this at each call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """Turns text into token ids and back.  Safe to share between threads.

    >>> engine.tokenizer.decode(engine.tokenizer.encode("Hello, 世界"))
    'Hello, 世界'

    A *special* token is a marker such as `<｜User｜>`, control or user-defined.  Text becomes one only under
    `encode(..., special=True)`; without it the same characters are ordinary text.
    """

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]

    def __init__(self, vocabulary: Vocabulary, pre_tokenizer: PreTokenizer) -> None:
        ids = vocabulary.check()
        self.source = vocabulary.source
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_ids = vocabulary.eos_ids
        self.kinds = vocabulary.kinds
        self.pre_tokenizer = pre_tokenizer
        markers = [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
            if kind in SPECIAL_KINDS
        ]
        with library_errors_as(ModelFormatError, f"{self.source}: tokenizer"):
            # Both tokenizers share one model.  The model knows the markers' strings, but no merge makes one
            # (Vocabulary.check), so only the tokenizer that was told of them finds them in text.
            model = BPE(vocab=ids, merges=list(vocabulary.merges), cache_capacity=_REMEMBERED)
            self._plain = LibraryTokenizer(model)
            self._marking = LibraryTokenizer(model)
            for tokenizer in (self._plain, self._marking):
                tokenizer.pre_tokenizer = pre_tokenizer
            self._marking.add_special_tokens(markers)
        self._odd_markers = any(_CUT_AMONG_MARKERS.search(marker.content) for marker in markers)
        self._one_large = threading.Lock()
        self.longest_unbroken: int | None = None

    def encode(self, text: str, special: bool = False, most: int | None = None, before: int = 0) -> list[int]:
        """The ids of `text`, without BOS.  With `special`, marker strings in it become their single token.

        Raises ContextLengthError as soon as it is certain that a prompt which has `before` tokens already would have
        more than `most`.  Other threads run meanwhile.
        """
        return [id for part in self.encode_parts(text, special, most, before) for id in part]

    def encode_parts(
        self, text: str, special: bool = False, most: int | None = None, before: int = 0
    ) -> Iterator[list[int]]:
        """The same ids, some at a time: working memory does not grow with the text, unless it has neither words nor
        lines.  TokenError if more than `longest_unbroken` bytes of it have none."""
        tokenizer = self._marking if special else self._plain
        count = before
        with library_errors_as(TokenError, f"{self.source}: text cannot be encoded"):
            # Lone surrogates are the only str content that is not text; the library's own message is vague.
            if not text.isascii():
                text.encode("utf-8")
        for begin, end in self._segments(text, special):
            if most is not None:
                least = count - (begin - len(text)) // self.longest
                if least > most:
                    raise ContextLengthError(
                        f"the prompt has {least:,} tokens or more, and the context has room for {most:,}"
                    )
            with self._room_for(part := text[begin:end]):
                ids = self._ids(tokenizer, part)
            count += len(ids)
            yield ids

    def _ids(self, tokenizer: LibraryTokenizer, part: str) -> list[int]:
        with library_errors_as(TokenError, f"{self.source}: text cannot be encoded"):
            # The only call of the library that lets other threads run.
            ids: list[int] = tokenizer.encode_batch_fast([part], add_special_tokens=False)[0].ids
        return ids

    def _room_for(self, part: str) -> AbstractContextManager[object]:
        """One that is much larger than others has to wait for those like it."""
        nbytes, limit = len(part.encode()), self.longest_unbroken
        if limit is not None and nbytes > limit:
            raise TokenError(f"the text has more than {limit:,} bytes without the end of a word or a line")
        return self._one_large if nbytes > 2 * _SEGMENT else nullcontext()

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token: a text of n characters has n / longest tokens at least."""
        return max(len(token.encode()) for token in self.tokens())

    def _segments(self, text: str, special: bool) -> Iterator[tuple[int, int]]:
        """Where the text can be cut so that its parts have the tokens of the whole."""
        cut, begin = _CUT_AMONG_MARKERS if special else _CUT, 0
        cuttable = self._cuttable and not (special and self._odd_markers)
        while cuttable and len(text) - begin > _SEGMENT:
            # No further than matters: looking takes a second for thirty megabytes, and nobody else runs meanwhile.
            found = cut.search(
                text, begin + _SEGMENT, begin + _SEGMENT + (self.longest_unbroken or len(text))
            )
            if found is None:
                break
            yield begin, found.end()
            begin = found.end()
        yield begin, len(text)

    @cached_property
    def _cuttable(self) -> bool:
        return is_known(self.pre_tokenizer)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        text_bytes = self._unmarked_bytes if skip_special else self.token_bytes
        return b"".join(map(text_bytes, ids)).decode("utf-8", errors="replace")

    def stream(self, skip_special: bool = False) -> StreamDecoder:
        """A decoder for ids that arrive one at a time."""
        return StreamDecoder(self._unmarked_bytes if skip_special else self.token_bytes)

    def token_bytes(self, id: int) -> bytes:
        """The exact bytes that a token stands for; a marker stands for the UTF-8 of its string."""
        index = self._index(id)
        token = self._token(index)
        match self.kinds[index]:
            case TokenKind.NORMAL:
                return from_alphabet(token)
            case TokenKind.BYTE if named := _BYTE_TOKEN.fullmatch(token):
                return bytes.fromhex(named[1])
            case _:
                return token.encode("utf-8")

    def token_id(self, token: str) -> int | None:
        """The id of an exact token string such as `<｜User｜>` or `Ġthe`, or None."""
        try:
            found: int | None = self._plain.token_to_id(token)
        except UnicodeEncodeError:  # a lone surrogate: no token has one
            return None
        return found

    def is_special(self, id: int) -> bool:
        """Whether the token is a marker, which ordinary text never becomes."""
        return self.kinds[self._index(id)] in SPECIAL_KINDS

    def tokens(self) -> list[str]:
        """Every token string in id order, as files store them; made anew from the library's copy."""
        return [self._token(index) for index in range(self.vocab_size)]

    def merges(self) -> list[tuple[str, str]]:
        """Every merge in rank order; slow, since the library gives them out only as JSON."""
        merges = json.loads(self._plain.to_str())["model"]["merges"]
        return [(left, right) for left, right in merges]

    def _token(self, index: int) -> str:
        token = self._plain.id_to_token(index)
        assert token is not None  # the model knows every id below vocab_size
        return token

    def _unmarked_bytes(self, id: int) -> bytes:
        return b"" if self.is_special(id) else self.token_bytes(id)

    def _index(self, id: int) -> int:
        try:
            index = operator.index(id)
        except TypeError:
            raise TokenError(f"{self.source}: token id: expected an integer; found {id!r}") from None
        if not 0 <= index < self.vocab_size:
            raise TokenError(f"{self.source}: token id: expected 0 to {self.vocab_size - 1}; found {index}")
        return index

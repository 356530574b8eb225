"""API keys: who they belong to, and how much each may ask for.

A file has a key in each line, alone or after its owner's name and before its limits:

    # name   key               limits
    anna     sk-5f0c…          concurrency=2 tokens_per_minute=20000
    ci       sk-91aa…
    sk-77b2…
"""

import hashlib
import hmac
import math
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Update
from penstock.engine.steps import Step
from penstock.errors import OptionError
from penstock.server.http.errors import ApiError

NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
LIMITS: Final = ("concurrency", "tokens_per_minute")
MINUTE: Final = 60.0
MOST: Final = 1 << 31


@dataclass(slots=True)
class Key:
    """What opens the server, what its owner may do at a time, and what they have done.

    Tokens are those that the model reads and writes for a key, not those that it finds in its cache.  A request is
    let in while any are left of the last minute's, whatever it will take: what it takes too much delays the next.
    """

    name: str
    secret: str = field(repr=False)
    concurrency: int | None = None
    tokens_per_minute: int | None = None
    active: int = 0
    requests: int = 0
    refused: int = 0
    read: int = 0
    generated: int = 0
    _debt: float = 0.0  # tokens of this minute, as of `_at`
    _at: float = 0.0

    @property
    def owner(self) -> str:
        """What stands for the key where the key itself must not."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While a request is answered."""
        self.requests += 1
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def refusal(self) -> ApiError | None:
        """Why another request is not answered now; None if it is."""
        text, seconds = "", 1
        if self.concurrency is not None and self.active >= self.concurrency:
            text = f"{self.concurrency} requests of this API key are being answered, and it may have no more"
        elif self.tokens_per_minute is not None and self.debt() >= self.tokens_per_minute:
            over = self.debt() - self.tokens_per_minute
            seconds = max(1, math.ceil((over + 1) * MINUTE / self.tokens_per_minute))
            text = (
                f"this API key may use {self.tokens_per_minute:,} tokens a minute, and has; "
                f"try again in {seconds} s"
            )
        if not text:
            return None
        self.refused += 1
        return ApiError(429, text, code="rate_limit_exceeded", retry_after=seconds)

    def debt(self) -> float:
        """Tokens that count as used in this minute."""
        now, allowed = monotonic(), self.tokens_per_minute or 0
        self._debt = max(0.0, self._debt - (now - self._at) * allowed / MINUTE)
        self._at = now
        return self._debt

    def charge(self, read: int = 0, generated: int = 0) -> None:
        self.read += read
        self.generated += generated
        self._debt = self.debt() + read + generated


class Charge:
    """One prompt of a key on its way."""

    def __init__(self, key: Key):
        self.key = key
        self._read: int | None = None

    def add(self, update: Update) -> None:
        if isinstance(update, PrefillProgress):
            before = update.cached if self._read is None else self._read
            self._read = max(update.done, before)  # a step that failed on its way is begun again
            self.key.charge(read=self._read - before)
        elif isinstance(update, Step):
            self.key.charge(generated=1)


class Keys:
    """All keys of a server."""

    def __init__(self, given: Sequence[str] = (), file: Path | None = None):
        self._given, self._file = tuple(given), file
        self.all: tuple[Key, ...] = ()
        self.reload()

    def __bool__(self) -> bool:
        return bool(self.all)

    def reload(self) -> None:
        """Reads the file again; what keys have done counts on.  OptionError if it cannot be read: then they stay."""
        filed = [] if self._file is None else read_key_file(self._file, first=len(self._given) + 1)
        _check_different(filed, self._file)
        named = {key.secret for key in filed}  # one that is given as well goes by its name in the file
        unnamed = enumerate(dict.fromkeys(self._given), 1)
        found = [Key(f"key-{number}", secret) for number, secret in unnamed if secret not in named] + filed
        known = {key.secret: key for key in self.all}
        for at, key in enumerate(found):
            if (old := known.get(key.secret)) is not None:
                old.name, old.concurrency, old.tokens_per_minute = (
                    key.name,
                    key.concurrency,
                    key.tokens_per_minute,
                )
                found[at] = old
        self.all = tuple(found)

    def find(self, given: str) -> Key | None:
        """The key that a client has sent, in a time that tells nothing of the others."""
        sent = given.encode(errors="surrogateescape")
        good = [hmac.compare_digest(sent, key.secret.encode(errors="surrogateescape")) for key in self.all]
        return self.all[good.index(True)] if any(good) else None


def read_key_file(file: Path, first: int = 1) -> list[Key]:
    """The keys in a file; one without a name is called by its number, counted from `first`."""
    where = f"--api-key-file {file}"
    try:
        mode, text = file.stat().st_mode, file.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"{where}: not UTF-8 text") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise OptionError(
            f"{where}: others than its owner may read or change it; `chmod 600 {file}` ends that"
        )
    found: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(_key(words, f"{where}, line {number}", f"key-{first + len(found)}"))
    if not found:
        raise OptionError(f"{where}: there is no key in it")
    return found


def _key(words: list[str], where: str, unnamed: str) -> Key:
    if len(words) == 1:
        return Key(unnamed, words[0])
    name, secret, *limits = words
    if not NAME.fullmatch(name):
        raise OptionError(f"{where}: expected a name of letters, digits and . _ @ -, then a key")
    numbers: dict[str, int] = {}
    for limit in limits:
        what, _, amount = limit.partition("=")
        if what not in LIMITS or what in numbers or not amount.isdecimal() or not 0 < int(amount[:12]) < MOST:
            expected = " or ".join(f"{each}=N" for each in LIMITS)
            raise OptionError(f"{where}: found {limit[:40]!r}, expected {expected}, each once at most")
        numbers[what] = int(amount)
    return Key(name, secret, **numbers)


def _check_different(keys: Iterable[Key], file: Path | None) -> None:
    names, secrets = set[str](), set[str]()
    for key in keys:
        if key.name in names or key.secret in secrets:
            raise OptionError(f"--api-key-file {file}: the key {key.name!r} is there twice")
        names.add(key.name)
        secrets.add(key.secret)

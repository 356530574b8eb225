"""How often each expert of a model was used, learned from run to run: numbers alone, in the user's cache folder.

One small file per model, named by its fingerprint, that only the user can read.  It holds a count for every expert
and nothing of what was said.  Every run adds what it used when it ends and lets what was there fade, so that the
counts follow what the model is used for.  Two runs that end at the same moment may lose one's counts, never the file.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.machine.notes import notes_folder

SUFFIX: Final = ".usage"
MAGIC: Final = b"PSUSAGE2"
HEADER: Final = 5  # numbers before the counts
ENOUGH_GUESSES: Final = 100.0
ENOUGH_ANSWERS: Final = 200.0  # uses of experts, by answers
UNTRIED: Final = 0.5  # of a use that nobody has seen repeated, the share that is taken to be
ENOUGH: Final = 2_000.0  # uses, over all blocks, below which nothing is concluded
REMEMBERED: Final = 200_000.0  # uses of a block; what is older fades as new ones come
MOST_FILES: Final = 64  # models; the least recently used are forgotten


@dataclass(frozen=True)
class Usage:
    """counts [blocks, experts]: uses, older ones weighing less."""

    counts: NDArray[np.float32]
    guesses: float = 0.0  # about the experts of the next layer
    right: float = 0.0  # of them
    answers: float = 0.0  # uses by answers, for which it was known how often each expert had been used before
    foretold: float = 0.0  # of them, those that were to go to the more used half of the experts
    found: float = 0.0  # and those that did

    @property
    def guesses_right(self) -> float | None:
        """The share; None where too few were made to tell."""
        return self.right / self.guesses if self.guesses >= ENOUGH_GUESSES else None

    @property
    def tells(self) -> bool:
        """Whether there is enough to go by."""
        return float(self.counts.sum()) >= ENOUGH

    @property
    def repeated(self) -> float:
        """How much of the use comes again in answers: 1 if they use experts as before, 0 if they use all alike."""
        if self.answers < ENOUGH_ANSWERS:
            return UNTRIED
        even = self.answers / 2
        return min(1.0, max(0.0, self.found - even) / (self.foretold - even)) if self.foretold > even else 1.0

    def weights(self) -> NDArray[np.float64]:
        """How likely each expert is, relative to others.  One that was never seen is not impossible."""
        return np.asarray(self.counts, np.float64) + 1.0

    def answer_weights(self) -> NDArray[np.float64]:
        """The same for the tokens of an answer: those of a prompt that it follows say less of it than of the next."""
        even = np.ones(self.counts.shape[1]) / self.counts.shape[1]
        found: NDArray[np.float64] = self.repeated * _shares(self.counts) + (1 - self.repeated) * even
        return found

    def tried(self, before: NDArray[np.float32], answers: NDArray[np.int64]) -> "Usage":
        """With how well the uses before have foretold those by answers [blocks, experts]."""
        half = np.argsort(-before, axis=1, kind="stable")[:, : before.shape[1] // 2]
        foretold = np.take_along_axis(_shares(before), half, axis=1).sum(axis=1) @ answers.sum(axis=1)
        found = np.take_along_axis(answers, half, axis=1).sum()
        return replace(self, answers=float(answers.sum()), foretold=float(foretold), found=float(found))

    def favourites(self) -> list[int]:
        """Keys of all experts, the most used first."""
        order = np.argsort(-self.counts.reshape(-1), kind="stable")
        return [int(key) for key in order]

    def after(self, other: "Usage") -> "Usage":
        """With what one more run has seen."""
        fresh, known = (float(each.counts.sum(axis=1).max(initial=0.0)) for each in (other, self))
        fading = min(1.0, max(0.0, REMEMBERED - fresh) / known) if known else 0.0
        counts = (self.counts * fading + other.counts).astype(np.float32)
        before, now = (np.array(each.beside_counts) for each in (self, other))
        return Usage(counts, *(before * fading + now).tolist())

    @property
    def beside_counts(self) -> tuple[float, ...]:
        return (self.guesses, self.right, self.answers, self.foretold, self.found)


def _shares(counts: NDArray[np.float32]) -> NDArray[np.float64]:
    """[blocks, experts], of each block's uses."""
    weights: NDArray[np.float64] = np.asarray(counts, np.float64) + 1.0
    shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def usage_path(fingerprint: str) -> Path:
    return notes_folder() / "usage" / f"{fingerprint}{SUFFIX}"


def recall_usage(fingerprint: str, blocks: int, experts: int) -> Usage | None:
    """What is known of a model with so many blocks of experts; None without a file, or with one that does not fit."""
    expected = len(MAGIC) + 4 * (HEADER + blocks * experts)
    try:
        with usage_path(fingerprint).open("rb") as file:
            raw = file.read(expected + 1)
    except OSError:
        return None
    if len(raw) != expected or not raw.startswith(MAGIC):
        return None
    numbers = np.frombuffer(raw, "<f4", offset=len(MAGIC)).astype(np.float32)
    beside, counts = numbers[:HEADER].tolist(), numbers[HEADER:].reshape(blocks, experts)
    if not bool(np.isfinite(numbers).all() and (numbers >= 0).all()) or beside[1] > beside[0]:
        return None
    return Usage(counts, *beside)


def learn_usage(fingerprint: str, seen: Usage) -> None:
    """Adds what a run has seen.  A file system that refuses is no reason to fail."""
    if not seen.counts.any():
        return
    path = usage_path(fingerprint)
    known = recall_usage(fingerprint, *seen.counts.shape)
    after = seen if known is None else known.after(seen)
    numbers = np.concatenate([after.beside_counts, after.counts.reshape(-1)])
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(MAGIC + numbers.astype("<f4").tobytes())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        _forget_oldest(path.parent)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - MOST_FILES)]:
        path.unlink(missing_ok=True)

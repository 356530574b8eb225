"""`policy="auto"`: the policy that would have read least in what was last recorded of this very model."""

from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.machine.notes import recall, remember
from penstock.storage.replay import best_policy
from penstock.storage.trace import read_trace

NOTES: Final = "traces"  # by fingerprint: where the last trace is, and which policy it spoke for
DEFAULT: Final = "lfru"  # where nothing was recorded: good at most sizes, bad at none
STEP: Final = 1 << 28  # capacities are told apart in steps of a quarter GiB
LATEST: Final = 100_000  # experts asked for, of the end of a trace, that are replayed


def note_trace(fingerprint: str, path: Path) -> None:
    """A trace of the model has been recorded."""
    remember(NOTES, fingerprint, {"trace": str(path.resolve()), "best": {}})


def choose_policy(fingerprint: str, capacity: int) -> str:
    """By the last trace, if there is one that can still be read; replayed once for every capacity."""
    noted = recall(NOTES).get(fingerprint)
    match noted:
        case {"trace": str(path), "best": dict(best)}:
            step = str(capacity // STEP)
            if isinstance(best.get(step), str):
                return str(best[step])
            try:
                found = best_policy(read_trace(Path(path)).latest(LATEST), capacity)
            except PenstockError:
                return DEFAULT
            remember(NOTES, fingerprint, {"trace": path, "best": {**best, step: found}})
            return found
        case _:
            return DEFAULT

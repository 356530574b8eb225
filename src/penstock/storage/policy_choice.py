"""`policy="auto"`: the policy that would have read least in what was last recorded of this very model."""

from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.machine.notes import recall, remember
from penstock.storage.replay import best_policy
from penstock.storage.trace import Trace, read_trace

NOTES: Final = "traces"  # by fingerprint: where the last trace is, and which policy it spoke for
DEFAULT: Final = "lfru"  # where nothing was recorded: good at most sizes, bad at none
STEP: Final = 1 << 28  # capacities are told apart in steps of a quarter GiB
SHORTEST: Final = 128  # tokens, below which a trace does not choose
LATEST: Final = 100_000  # experts asked for, of the end of a trace, that are replayed


def note_trace(fingerprint: str, path: Path) -> None:
    """A trace of the model has been recorded."""
    remember(NOTES, fingerprint, {"trace": str(path.resolve()), "best": {}})


def tells(trace: Trace) -> bool:
    """Whether a trace is long enough to choose by: of a few tokens every policy makes about the same."""
    first = trace.blocks[:1]
    return int(trace.rows[trace.blocks == first].sum()) >= SHORTEST if len(first) else False


def choose_policy(fingerprint: str, capacity: int) -> str:
    """By the last trace, if there is one that can still be read; replayed once for every capacity."""
    noted = recall(NOTES).get(fingerprint)
    match noted:
        case {"trace": str(path), "best": dict(best)}:
            step = str(capacity // STEP)
            if isinstance(best.get(step), str):
                return str(best[step])
            try:
                trace = read_trace(Path(path)).latest(LATEST)
            except PenstockError:
                return DEFAULT
            found = best_policy(trace, capacity) if tells(trace) else DEFAULT
            remember(NOTES, fingerprint, {"trace": path, "best": {**best, step: found}})
            return found
        case _:
            return DEFAULT

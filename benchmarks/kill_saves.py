"""A process that saves sessions is killed at random moments, again and again: what it had saved must be there, whole.

    python -m benchmarks.kill_saves --kills 1000

Every process opens the folder, says that it is ready, and saves one session after another until it is killed
(SIGKILL); it notes when it begins to save one and when that is done.  Kills between two saves do not count.  After
each kill the folder is opened anew: all older sessions must be listed, with payloads of the right size, the latest
and a few others must load and be what was saved, and nothing else may be left over.  Every so often, and at the end,
all of them are loaded.
"""

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.children import ChildError
from benchmarks.vs_llamacpp import numbers
from penstock.backend import open_backend
from penstock.backend.state import DTYPES, StatePool
from penstock.errors import PenstockError
from penstock.kv.snapshot import Snapshot
from penstock.kv.state import SequenceState, live_shapes
from penstock.kv.store import KINDS, KvStore
from penstock.kv.store_index import Entry
from penstock.model import architecture
from penstock.pocket import pocket_path
from penstock.weights.opening import open_checkpoint

MODEL: Final = "a model's fingerprint"
SPACE: Final = 64 << 30  # nothing has to go
LONGEST_LIFE_S: Final = 0.03  # once it is ready
LONGEST: Final = 10  # kills for one in the middle of a save, before this is given up
AHEAD: Final = 8  # sessions made before, so that there is little else to do than to save
SAMPLE: Final = 4  # older sessions that are loaded after each kill
THOROUGH: Final = 250  # kills between times when all are


@dataclass
class Count:
    """What was found."""

    kills: int = 0
    saved: int = 0
    loaded: int = 0
    in_the_middle: int = 0  # kills while a session was being saved
    lost: list[int] = field(default_factory=list)  # sessions by number
    corrupted: list[int] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)  # files
    warnings: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.corrupted or self.left_over or self.warnings)


def pocket_states() -> StatePool:
    """Memory for sessions of the pocket model."""
    checkpoint = open_checkpoint(pocket_path()).without_draft()
    layout = architecture(checkpoint.config).state_layout(
        checkpoint, kv_dtype="f16", context=256, max_rewind=0
    )
    return open_backend("cpu", threads=1).states(layout)


def tokens_of(number: int) -> list[int]:
    """Of the session with this number: 3 to 100, different for every number below 16 million."""
    return [number % 251, number // 251 % 251, number // 251**2, *([7] * (number % 98))]


def session(states: StatePool, number: int) -> Snapshot:
    """A state that no model computed, the same whenever it is asked for."""
    tokens = tokens_of(number)
    state = SequenceState(states)
    state.position = state.floor = len(tokens)
    generator, shapes = np.random.default_rng(number), live_shapes(states.layout, len(tokens), len(tokens))
    rows = {series.name: generator.standard_normal(shapes[series.name]) for series in states.layout.series}
    state.restore(
        {series.name: rows[series.name].astype(DTYPES[series.dtype]) for series in states.layout.series}
    )
    return Snapshot(tokens, state, None)


def equal(found: Snapshot | None, expected: Snapshot) -> bool:
    if found is None or found.tokens != expected.tokens:
        return False
    ours, theirs = found.state.tensors(), expected.state.tensors()
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


# ── who is killed ─────────────────────────────────────────────────────────────────────────────────────────


def save_on_and_on(folder: Path, states: StatePool, first: int, journal: Path, ready: int) -> None:
    """Saves sessions first, first + 1 …  Notes twice their number before, and one more after each."""
    notes = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    made = [session(states, number) for number in range(first, first + AHEAD)]
    with KvStore(folder, SPACE, MODEL) as store:
        os.write(ready, b"!")
        for number in itertools.count(first):
            one = made[number - first] if number - first < AHEAD else session(states, number)
            os.write(notes, (2 * number).to_bytes(4, "little"))
            if store.put(one.tokens, one, KINDS[number % len(KINDS)]):
                os.write(notes, (2 * number + 1).to_bytes(4, "little"))


def noted(journal: Path) -> tuple[list[int], bool]:
    """Sessions that are saved, and whether another one was begun."""
    notes = np.frombuffer(journal.read_bytes(), "<u4").tolist() if journal.exists() else []
    return [note // 2 for note in notes if note % 2], bool(notes) and notes[-1] % 2 == 0


def started(folder: Path, states: StatePool, first: int, journal: Path) -> int:
    """The id of a process that is about to save.  A copy of this one, which costs no imports: safe as long as this
    one has a single thread."""
    hears, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            save_on_and_on(folder, states, first, journal, ready)
        finally:
            os._exit(1)
    os.close(ready)
    with os.fdopen(hears, "rb") as ear:
        ear.read(1)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != -signal.SIGKILL:
        raise ChildError(f"a process that saves ended by itself, with status {status}")


# ── who looks ─────────────────────────────────────────────────────────────────────────────────────────────


class Judge:
    """Looks at the folder after each kill."""

    def __init__(self, folder: Path, journal: Path, states: StatePool, seed: int):
        self.folder, self.journal, self.states = folder, journal, states
        self.count = Count()
        self._rng = np.random.default_rng(seed)
        self._checked = 0

    def moment(self) -> float:
        """Seconds that the next process lives."""
        return float(self._rng.uniform(0.0, LONGEST_LIFE_S))

    def look(self) -> None:
        done, saving = noted(self.journal)
        with warnings.catch_warnings(record=True) as caught, KvStore(self.folder, SPACE, MODEL) as store:
            warnings.simplefilter("always")
            self.count.in_the_middle += saving
            self._tidy(store)
            self._listed(store, done)
            for number in [*done[self._checked :], *self._some(done)]:
                self._load(store, number)
        self.count.warnings += [str(warning.message) for warning in caught]
        self.count.kills += 1
        self.count.saved = self._checked = len(done)

    def load_all(self) -> None:
        with KvStore(self.folder, SPACE, MODEL) as store:
            for number in noted(self.journal)[0]:
                self._load(store, number)

    def _some(self, done: list[int]) -> list[int]:
        if not done:
            return []
        return [done[int(place)] for place in self._rng.integers(len(done), size=SAMPLE)]

    def _listed(self, store: KvStore, done: list[int]) -> None:
        """As many as were noted are in the index with payloads of the size that it says; if not, which?"""
        whole = [entry for entry in store.entries() if self._size(entry) == entry.nbytes]
        if len(whole) < len(done):
            for number in done:
                self._load(store, number)

    def _size(self, entry: Entry) -> int:
        path = self.folder / f"{entry.key}.{entry.kind}"
        return path.stat().st_size if path.exists() else -1

    def _load(self, store: KvStore, number: int) -> None:
        tokens = tokens_of(number)
        entry = store.find(tokens, at_least=len(tokens))
        if entry is None:
            self.count.lost.append(number)
        elif not equal(store.load(entry, self.states), session(self.states, number)):
            self.count.corrupted.append(number)
        self.count.loaded += 1

    def _tidy(self, store: KvStore) -> None:
        expected = {f"{entry.key}.{entry.kind}" for entry in store.entries()}
        expected |= {"index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "lock"}
        self.count.left_over += sorted({path.name for path in self.folder.iterdir()} - expected)


# ── command line ──────────────────────────────────────────────────────────────────────────────────────────


def table(count: Count) -> Table:
    shown = Table(title="killed while saving", title_justify="left")
    for column in ("kills", "in the middle of a save", "sessions saved", "loaded and compared"):
        shown.add_column(column, justify="right")
    for column in ("lost", "corrupted", "files left over", "met"):
        shown.add_column(column, justify="right")
    counts = (count.kills, count.in_the_middle, count.saved, count.loaded)
    bad = (len(count.lost), len(count.corrupted), len(count.left_over))
    shown.add_row(*(f"{number:,}" for number in (*counts, *bad)), "yes" if count.good else "no")
    return shown


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill_saves")
    add = parser.add_argument
    add("--kills", type=int, default=1000, help="in the middle of a save")
    add("--seed", type=int, default=1)
    add(
        "--folder",
        type=Path,
        help="where sessions are saved, in a new folder; otherwise where temporary files are",
    )
    add("--json", type=Path, help="write every number to this file")
    return parser


def run(options: argparse.Namespace, console: Console) -> Count:
    numbers(str(options.kills), "kills")
    say = partial(console.print, markup=False, soft_wrap=True)
    say(machine.sentence())
    states = pocket_states()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        judge = Judge(Path(place) / "store", Path(place) / "journal", states, options.seed)
        judge.folder.mkdir()
        for turn in range(1, LONGEST * options.kills + 1):
            first = len(noted(judge.journal)[0])
            process = started(judge.folder, states, first, judge.journal)
            time.sleep(judge.moment())
            kill(process)
            judge.look()
            if turn % THOROUGH == 0:
                judge.load_all()
            if turn % 100 == 0:
                spent = time.perf_counter() - begin
                say(f"· {turn} kills, {judge.count.saved} sessions, {spent:.0f} s")
            if judge.count.in_the_middle == options.kills:
                break
        judge.load_all()
    console.print(table(judge.count))
    if options.json:
        report = {"machine": machine.describe(), "seed": options.seed, **asdict(judge.count)}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return judge.count


def main() -> None:
    options = arguments().parse_args()
    try:
        run(options, Console(width=None if sys.stdout.isatty() else 170, highlight=False))
    except (PenstockError, ChildError) as error:
        sys.exit(f"kill_saves: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

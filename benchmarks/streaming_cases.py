"""The cases of `streaming`: who runs which model with how much memory, and what is expected of them."""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.children import ChildError
from benchmarks.contest import PENSTOCK
from benchmarks.disk import best_bandwidth
from benchmarks.llamacpp_source import Source
from benchmarks.trial import Entrant, Order, Setting, Trial, hold, in_turn

GIB: Final = 1 << 30
LLAMA: Final = "llama.cpp"
SESSIONS: Final = 4  # decoding together
SWEEP: Final = (2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # GiB
STRETCHES: Final = 4  # of decoding, with the disk measured in between
BELIEVABLE: Final = 1.05  # of the disk's own pace; above it the measurement is at fault
DIGEST: Final = 16  # tokens whose logits are compared bit for bit, after a prompt

Values = dict[str, list[float]]  # by entrant, one per repetition
Trials = dict[str, list[Trial]]


class Counts(NamedTuple):
    """How much is run."""

    threads: int
    repeat: int
    prompt: int
    decode: int
    prefill: int

    @property
    def context(self) -> int:
        return -(-max(self.prompt + max(self.decode, DIGEST), self.prefill) // 256) * 256


@dataclass(frozen=True)
class Row:
    """One line of the table.  `found` is what the target speaks of, usually a ratio of two medians."""

    case: str
    measure: str
    values: Values
    found: float | None = None
    target: str = ""
    met: bool | None = None


class Means(NamedTuple):
    """What this machine offers."""

    llama: Source | None
    groups: bool  # whether memory groups can be made


class Bench:
    """One model file and all that is run on it."""

    def __init__(self, model: Path, vocab: int, counts: Counts, means: Means, say: Callable[[str], None]):
        self.model, self.vocab, self.counts, self.means, self.say = model, vocab, counts, means, say
        self.trials: list[Trial] = []
        self.setting = Setting(model, counts.threads, counts.context, self.ids(1)[0])

    # ── who ───────────────────────────────────────────────────────────────────────────────────────────────

    def penstock(self, gib: float | None, **options: Any) -> Entrant:
        """With so much memory, promised by the engine and enforced by the kernel; None: with all there is."""
        limit = None if gib is None else round(gib * GIB)
        name = "Penstock, no limit" if gib is None else f"Penstock, {gib:g} GiB"
        options = {"memory": limit, "context": self.counts.context, "prefill_chunk": None, **options}
        return Entrant(name, PENSTOCK, limit, options, self.means.groups)

    def warmed(self, entrant: Entrant) -> Entrant:
        """The same, but nearly every expert was needed once before anything counts."""
        return replace(entrant, first={"warm": self.prefill()})

    def resident(self) -> Entrant:
        """With all there is, and the whole model in it."""
        return self.warmed(self.penstock(None, streaming="resident"))

    def llama_cpp(self, gib: float) -> list[Entrant]:
        """As its users run it: mapped file.  Empty where it is not installed."""
        return [Entrant(LLAMA, self.means.llama, round(gib * GIB))] if self.means.llama else []

    # ── what ──────────────────────────────────────────────────────────────────────────────────────────────

    def ids(self, count: int, seed: int = 0) -> list[int]:
        return random.Random(seed).choices(range(self.vocab), k=count)

    def decode(self) -> Order:
        ids = self.ids(self.counts.prompt + self.counts.decode)
        return {"do": "decode", "prompt": ids[: self.counts.prompt], "ids": ids[self.counts.prompt :]}

    def prefill(self) -> Order:
        return {"do": "prefill", "ids": self.ids(self.counts.prefill)}

    def together(self) -> Order:
        prompt = self.counts.prompt
        past = [self.ids(prompt + self.counts.decode, seed) for seed in range(SESSIONS)]
        rows = [list(row) for row in zip(*(ids[prompt:] for ids in past), strict=True)]
        return {"do": "together", "prompts": [ids[:prompt] for ids in past], "rows": rows}

    def digest(self) -> Order:
        ids = self.ids(self.counts.prompt + DIGEST)
        return {"do": "digest", "prompt": ids[: self.counts.prompt], "ids": ids[self.counts.prompt :]}

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def hold(
        self, entrants: Sequence[Entrant], between: Callable[[], float] | None = None, **orders: Order
    ) -> Trials:
        """Every entrant obeys every order, in turn.  Who fails is named and has no trial to show."""
        found: Trials = {entrant.name: [] for entrant in entrants}
        for entrant in in_turn(entrants, self.counts.repeat):
            if (trial := self._one(entrant, orders, between)) is not None:
                found[entrant.name].append(trial)
        return found

    def _one(
        self, entrant: Entrant, orders: dict[str, Order], between: Callable[[], float] | None = None
    ) -> Trial | None:
        if entrant.source is PENSTOCK:
            orders = orders | {"digest": self.digest()}
        try:
            trial = hold(entrant, self.setting, orders, between)
        except ChildError as error:
            self.say(f"  {entrant.name} failed: {str(error).splitlines()[-1]}")
            return None
        self.trials.append(trial)
        self.say(f"  {describe(trial)}")
        return trial

    @cached_property
    def reference(self) -> str | None:
        """What the logits must be: those of an engine that maps the file and has all the memory there is."""
        trial = self._one(self.penstock(None, streaming="mmap"), {})
        return trial.answers["digest"]["sha256"] if trial else None

    def promises(self, case: str, trials: Trials) -> Iterator[Row]:
        """What holds for Penstock in every case: it keeps to its memory, and the answer is the same."""
        ours = {name: some for name, some in trials.items() if name != LLAMA}
        if self.means.groups:
            use = {
                name: [t.peak / t.limit for t in some if t.peak and t.limit] for name, some in ours.items()
            }
            most = max((share for shares in use.values() for share in shares), default=None)
            # The kernel lets nobody go beyond a limit, it kills: who promised too much is missing here.
            kept = most is not None and most <= 1 and all(len(t) == self.counts.repeat for t in ours.values())
            use = {name: shares for name, shares in use.items() if shares}
            yield Row(case, "peak of the group / memory", use, most, "≤ 1.00", kept)
        digests = [trial.answers["digest"]["sha256"] for some in ours.values() for trial in some]
        if digests and self.reference:
            same = sum(digest == self.reference for digest in digests) / len(digests)
            yield Row(case, "share of runs with the same bits", {}, same, "= 1.00", same == 1)


def describe(trial: Trial) -> str:
    """A line for those who wait."""
    parts = [f"started in {trial.start_s:.1f} s"]
    for name, answer in trial.answers.items():
        if len(answer.get("step_s", ())) > 1:
            parts.append(f"{name} {trial.cold(name):.2f}, then {trial.steady(name):.2f} steps/s")
        elif "seconds" in answer:
            parts.append(f"{name} in {answer['seconds']:.1f} s")
        if "disk_bytes" in answer:
            parts.append(f"{answer['disk_bytes'] / len(answer['step_s']) / 1e6:,.0f} MB read per step")
    private = max((answer.get("private_bytes", 0) for answer in trial.answers.values()), default=0)
    if private:
        parts.append(f"{private / GIB:.2f} GiB private")
    if trial.peak is not None and trial.refaults is not None:
        parts.append(f"peak {trial.peak / GIB:.2f} GiB, {trial.refaults / 1e9:.2f} GB lost and read again")
    parts.append(f"others kept {trial.neighbours:.1f} cores busy")
    return f"{trial.entrant}: {', '.join(parts)}"


def ratio(case: str, measure: str, values: Values, at_least: float | None = None) -> Row:
    """The first entrant's median over the second's.  Who has nothing to show does not meet a target."""
    target = "" if at_least is None else f"≥ {at_least:g}"
    ours, theirs = (*values.values(), [])[:2]
    if not ours:
        return Row(case, measure, values, None, target, False if target else None)
    if not theirs:
        return Row(case, measure, values, None, target)
    found = statistics.median(ours) / statistics.median(theirs)
    return Row(case, measure, values, found, target, None if at_least is None else found >= at_least)


# ── the cases ─────────────────────────────────────────────────────────────────────────────────────────────


def limited(bench: Bench) -> Iterator[Row]:
    """A model of twice the memory: against llama.cpp, and against having it all in memory."""
    ours, free = bench.penstock(3.5), bench.resident()
    theirs = bench.llama_cpp(3.5)
    trials = bench.hold([ours, *theirs, free], decode=bench.decode())
    rivals = [entrant.name for entrant in (ours, *theirs)]
    cold = {name: [trial.cold("decode") for trial in trials[name]] for name in trials}
    steady = {name: [trial.steady("decode") for trial in trials[name]] for name in trials}
    yield ratio("limited", "decode, cold, tok/s", {name: cold[name] for name in rivals})
    yield ratio("limited", "decode, steady, tok/s", {name: steady[name] for name in rivals}, at_least=4)
    both = {name: steady[name] for name in (ours.name, free.name)}
    yield ratio("limited", "decode, steady, tok/s", both, at_least=0.8)
    yield from bench.promises("limited", trials)


def batch(bench: Bench) -> Iterator[Row]:
    """An expert is read once for all who need it."""
    ours = bench.penstock(3.5)
    trials = bench.hold([ours], decode=bench.decode(), together=bench.together())
    values = {
        f"{SESSIONS} sessions": [SESSIONS * trial.steady("together") for trial in trials[ours.name]],
        "one session": [trial.steady("decode") for trial in trials[ours.name]],
    }
    yield ratio("batch", "decode, steady, tok/s in all", values, at_least=2)
    yield from bench.promises("batch", trials)


def sweep(bench: Bench) -> Iterator[Row]:
    """Speed against memory, once that is full: a large cache takes longer to fill than a small one."""
    entrants = [bench.warmed(bench.penstock(gib)) for gib in SWEEP] + [bench.resident()]
    trials = bench.hold(entrants, decode=bench.decode())
    free = entrants[-1].name
    for entrant in entrants[:-1]:
        names = (entrant.name, free)
        values = {name: [trial.steady("decode") for trial in trials[name]] for name in names}
        yield ratio("sweep", "decode, steady, tok/s", values)
    yield from bench.promises("sweep", trials)


def large(bench: Bench) -> Iterator[Row]:
    """A model of four times the memory."""
    entrants = [bench.penstock(4), *bench.llama_cpp(4)]
    trials = bench.hold(entrants, decode=bench.decode(), prefill=bench.prefill())
    for name, speed in (("cold", Trial.cold), ("steady", Trial.steady)):
        values = {entrant: [speed(trial, "decode") for trial in some] for entrant, some in trials.items()}
        yield ratio("large", f"decode, {name}, tok/s", values, at_least=4 if name == "steady" else None)
    count = bench.counts.prefill
    prefill = {
        entrant: [count / trial.answers["prefill"]["seconds"] for trial in some]
        for entrant, some in trials.items()
    }
    yield ratio("large", f"prefill {count}, tok/s", prefill, at_least=4)
    yield from bench.promises("large", trials)


def disk(bench: Bench) -> Iterator[Row]:
    """So little memory that the disk sets the pace: how much of its own pace is left.

    The pace of a disk that others share changes within seconds, so a stretch of decoding is compared with what the
    disk did right before and right after it.
    """
    ours = bench.penstock(1.5)
    whole = bench.decode()
    count = max(1, len(whole["ids"]) // STRETCHES)
    stretches = {
        f"stretch {number}": whole | {"ids": whole["ids"][number * count :][:count] or whole["ids"][:count]}
        for number in range(STRETCHES)
    }
    trials = bench.hold([ours], between=lambda: best_bandwidth(bench.model) / 1e9, **stretches)[ours.name]
    for what, seconds in (("reads", _reading_s), ("decodes", _decoding_s)):
        pairs = [pair for trial in trials for pair in _beside_the_disk(trial, list(stretches), seconds)]
        yield share_of_disk(f"GB/s while it {what}", ours.name, pairs)
    held = [trial.plan["experts_held"] / trial.plan["experts_total"] for trial in trials]
    most = max(held, default=None)
    met = most is not None and most <= 0.1
    yield Row("disk", "share of the experts in memory", {ours.name: held}, most, "≤ 0.10", met)
    yield from bench.promises("disk", {ours.name: trials})


class Beside(NamedTuple):
    """Gigabytes per second of a stretch, and of the disk alone around it."""

    ours: float
    alone: float


def _reading_s(answer: dict[str, Any]) -> float:
    return float(answer["counted"]["read_seconds"])


def _decoding_s(answer: dict[str, Any]) -> float:
    return float(answer["seconds"])


def _beside_the_disk(
    trial: Trial, stretches: Sequence[str], seconds: Callable[[dict[str, Any]], float]
) -> Iterator[Beside]:
    for name, around in zip(stretches, pairwise(trial.between), strict=True):
        answer = trial.answers[name]
        yield Beside(answer["counted"]["disk_bytes"] / seconds(answer) / 1e9, sum(around) / 2)


def share_of_disk(measure: str, name: str, pairs: Sequence[Beside]) -> Row:
    """The median share.  Nobody reads faster than the disk: if it looks so, the disk's pace was not what was
    measured, and the target is neither met nor missed."""
    values = {name: [pair.ours for pair in pairs], "disk alone": [pair.alone for pair in pairs]}
    if not pairs:
        return Row("disk", measure, values, None, "≥ 0.85", False)
    found = statistics.median(pair.ours / pair.alone for pair in pairs)
    met = None if found > BELIEVABLE else found >= 0.85
    return Row("disk", measure, values, found, "≥ 0.85", met)


def largest(bench: Bench) -> Iterator[Row]:
    """A model of ten times the memory, whose dense weights alone are more than that."""
    ours = bench.penstock(2.5)
    trials = bench.hold([ours], decode=bench.decode())
    speeds = [trial.steady("decode") for trial in trials[ours.name]]
    yield Row("largest", "decode, steady, tok/s", {ours.name: speeds}, None, "works", bool(speeds))
    yield from bench.promises("largest", trials)


class Case(NamedTuple):
    layers: int  # of the model it runs on
    needs_groups: bool
    run: Callable[[Bench], Iterator[Row]]


CASES: Final[dict[str, Case]] = {
    "limited": Case(3, True, limited),
    "batch": Case(3, True, batch),
    "sweep": Case(3, True, sweep),
    "large": Case(8, True, large),
    "disk": Case(8, False, disk),
    "largest": Case(13, True, largest),
}

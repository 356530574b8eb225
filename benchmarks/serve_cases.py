"""The cases of `serve`: what is asked of which server, and what is expected of it."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.serve_client import Ask, Heard, Lane, play
from benchmarks.serve_inside import inside
from benchmarks.served import Memory, Served, watched
from penstock.chat.messages import Conversation, Thinking
from penstock.errors import OptionError
from penstock.weights.synth import plan_synth, write_synth
from pocket.data import problem
from pocket.data.core import Problem

MIB: Final = 1 << 20
STREAMS: Final = 64
QUESTIONS: Final = 128
SKILLS: Final = ("story", "copy", "sort", "reverse", "arithmetic", "facts")
TOGETHER: Final = 8  # streams of a batch
DECODERS: Final = 4  # whose pace is watched
WIDE_TOKENS: Final = 32  # of an answer of a model of the published width
LONG: Final = 6000  # tokens of a conversation
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"


class Counts(NamedTuple):
    """How much is run."""

    threads: int
    seconds: float
    repeat: int
    tokens: int
    layers: int
    memory: str
    folder: Path
    keep: bool


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: str
    measure: str
    found: float | None
    unit: str = ""
    target: str = ""
    met: bool | None = None
    note: str = ""
    values: list[float] = field(default_factory=list)


def at_most(case: str, measure: str, found: float, limit: float, unit: str = "", **more: Any) -> Row:
    return Row(case, measure, found, unit, f"≤ {limit:g}{unit and ' ' + unit}", found <= limit, **more)


def at_least(case: str, measure: str, found: float, limit: float, unit: str = "", **more: Any) -> Row:
    return Row(case, measure, found, unit, f"≥ {limit:g}{unit and ' ' + unit}", found >= limit, **more)


class Bench:
    """How servers are started, and whom to tell what happens."""

    def __init__(self, counts: Counts, say: Callable[[str], None]):
        self.counts, self.say = counts, say

    def server(self, *more: str, threads: int | None = None, model: Path | None = None) -> Served:
        named = () if model is None else ("-m", str(model))
        own = ("--threads", str(threads or self.counts.threads), "--memory", self.counts.memory)
        return Served(*named, *own, *more)


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────────────


def chat(conversation: Conversation, **more: Any) -> Ask:
    """An answer that is always the same."""
    messages = [{"role": message.role.value, "content": message.content} for message in conversation.messages]
    return Ask(CHAT, {"messages": messages, "temperature": 0, "max_tokens": 400, **more})


def going_on(prompt: Sequence[int], tokens: int) -> Ask:
    """So many tokens, whatever they say."""
    body = {"prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return Ask(COMPLETIONS, body)


def prompts(number: int, length: int = 32, seed: int = 0) -> list[list[int]]:
    """Ids that every model has and that mark nothing."""
    rng = Random(seed)
    return [[rng.randrange(300, 500) for _ in range(length)] for _ in range(number)]


def questions(number: int) -> list[Ask]:
    """Different ones, short and long."""
    rng = Random(64)
    found: dict[str, Ask] = {}
    while len(found) < number:
        made = problem(SKILLS[len(found) % len(SKILLS)], rng, thinking=Thinking.OFF).conversation
        found.setdefault(made.messages[-1].content, chat(made))
    return list(found.values())


# ── streams: many at once, none of them lost ──────────────────────────────────────────────────────────────


def streams(bench: Bench) -> Iterator[Row]:
    case, seconds = "streams", bench.counts.seconds
    with bench.server("--parallel", str(STREAMS)) as server:
        asked = questions(QUESTIONS)
        bench.say(f"· {len(asked)} questions, one at a time …")
        alone = play(server.url, [Lane(asked)])
        expected = [heard.text for heard in alone]
        bench.say(f"· {STREAMS} streams for {seconds:.0f} s …")
        lanes = []
        for number in range(STREAMS):
            first = number * len(asked) // STREAMS
            lanes.append(Lane([*asked[first:], *asked[:first]], again=True))
        before, begin = server.scheduler(), time.perf_counter()
        with watched(server) as memory:
            found = play(server.url, lanes, seconds)
        after = server.scheduler()
        server.end()
    for heard in found:
        heard.ask = (heard.ask + heard.lane * len(asked) // STREAMS) % len(asked)
    yield from _reliability(case, found, expected)
    yield from _latency(case, found)
    yield from _throughput(case, found, seconds)
    steps, rows, paused = (after[name] - before[name] for name in ("steps", "busy_rows", "paused"))
    yield Row(case, "requests in a step, mean", rows / max(1, steps), note=f"{paused} paused")
    yield from _memory(case, memory, begin + seconds / 6, begin + seconds)


def _reliability(case: str, found: Sequence[Heard], expected: Sequence[str]) -> Iterator[Row]:
    errors = [heard for heard in found if heard.error]
    lost = [heard for heard in found if not heard.error and not (heard.complete and heard.finish)]
    others = set(expected)
    wrong = [
        heard for heard in found if not heard.error and heard.complete and heard.text != expected[heard.ask]
    ]
    crossed = [heard for heard in wrong if heard.text in others]
    yield at_most(case, "errors", len(errors), 0, note=str(errors[0].error)[:80] if errors else "")
    yield at_most(case, "streams without an end", len(lost), 0)
    note = f"of {len(set(expected))} different ones"
    yield at_most(case, "answers of somebody else", len(crossed), 0, note=note)
    yield at_most(case, "answers other than alone", len(wrong), 0, note=f"of {len(found)}")


def _latency(case: str, found: Sequence[Heard]) -> Iterator[Row]:
    heard = [one for one in found if one.times]
    firsts = [one.first_s for one in heard]
    gaps = [gap for one in heard for gap in one.gaps]
    for name, seconds in (("to the first token", firsts), ("between tokens", gaps)):
        if seconds:
            for percent in (50, 90, 99):
                yield Row(case, f"{name}, p{percent}", 1000 * float(np.percentile(seconds, percent)), "ms")


def _throughput(case: str, found: Sequence[Heard], seconds: float) -> Iterator[Row]:
    whole = [heard for heard in found if heard.complete]
    span = max((heard.times[-1] for heard in whole if heard.times), default=0.0) - min(
        (heard.begin for heard in found), default=0.0
    )
    yield Row(case, "requests", len(whole) / max(span, seconds), "/s", note=f"{len(whole)} in all")
    yield Row(case, "tokens", sum(heard.tokens for heard in whole) / max(span, seconds), "/s")


def _memory(case: str, seen: Sequence[Memory], begin: float, end: float) -> Iterator[Row]:
    """What is flat: the straight line through all that was seen after the warm-up."""
    steady = [memory for memory in seen if begin <= memory.at <= end]
    if len(steady) < 4:
        return
    minutes = np.array([(memory.at - steady[0].at) / 60 for memory in steady])
    mib = np.array([memory.rss / MIB for memory in steady])
    slope, base = np.polyfit(minutes, mib, 1)
    growth = 100 * slope * minutes[-1] / base
    note = f"{mib[0]:.0f} MiB, at the end {mib[-1]:.0f} MiB, {slope:+.2f} MiB/min"
    yield at_most(
        case, "growth of memory after the warm-up", float(growth), 2, "%", note=note, values=mib.tolist()
    )


# ── batch: what several streams gain from one another ─────────────────────────────────────────────────────


def batch(bench: Bench) -> Iterator[Row]:
    with bench.server("--parallel", str(TOGETHER)) as server:
        one, many = _in_turn(server, bench.counts)
        server.end()
    yield from _speeds("batch", one, many)
    ratio = statistics.median(many) / statistics.median(one)
    yield at_least("batch", f"{TOGETHER} streams to one", ratio, 3, "×")


def _speeds(case: str, one: list[float], many: list[float], where: str = "") -> Iterator[Row]:
    for number, speeds in ((1, one), (TOGETHER, many)):
        name = f"{number} stream{'s' if number > 1 else ''}{where}"
        yield Row(case, name, statistics.median(speeds), "tok/s", values=speeds)


def _in_turn(server: Served, counts: Counts) -> tuple[list[float], list[float]]:
    """Tokens per second of one stream and of several, turn about.  The first of each are not counted."""
    found: dict[int, list[float]] = {1: [], TOGETHER: []}
    for turn in range(counts.repeat + 1):
        for number, speeds in found.items():
            asks = [going_on(prompt, counts.tokens) for prompt in prompts(number, seed=turn)]
            speeds.append(decode_speed(play(server.url, [Lane([ask]) for ask in asks])))
    return found[1][1:], found[TOGETHER][1:]


def decode_speed(found: Sequence[Heard]) -> float:
    """Tokens per second after the first of each stream."""
    failed = next((heard for heard in found if heard.error or not heard.times), None)
    if failed is not None:
        raise OptionError(f"an answer failed: {failed.error}")
    first, last = min(heard.times[0] for heard in found), max(heard.times[-1] for heard in found)
    return sum(heard.tokens - 1 for heard in found) / (last - first)


# ── overhead: what is not the engine's time ───────────────────────────────────────────────────────────────


def overhead(bench: Bench) -> Iterator[Row]:
    """On the pocket model, whose steps are so short that everything else shows, and on one of the published width,
    of which a step is still only a fraction of the whole model's."""
    yield from _overhead(bench, "pocket", None, bench.counts)
    plan = plan_synth(width="flash", layers=bench.counts.layers, mix="q2", vocab=32768)
    path = bench.counts.folder / f"{plan.name.replace(' ', '-')}-{plan.config.vocab_size}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    existed = path.exists()
    if not existed:
        bench.say(f"· writing {path.name} ({plan.data_bytes / 2**30:.1f} GiB) …")
        write_synth(plan, path)
    try:
        slow = bench.counts._replace(tokens=min(WIDE_TOKENS, bench.counts.tokens), repeat=1)
        yield from _overhead(bench, f"{bench.counts.layers} full-width layers", path, slow)
    finally:
        if not existed and not bench.counts.keep:
            path.unlink()


def _overhead(bench: Bench, name: str, model: Path | None, counts: Counts) -> Iterator[Row]:
    for threads in sorted({1, counts.threads}):
        case = f"overhead, {name}, {threads} thread{'s' if threads > 1 else ''}"
        bench.say(f"· {case} …")
        with bench.server("--parallel", str(TOGETHER), threads=threads, model=model) as server:
            path = Path(server.props()["model_path"])
            shares = {number: _share(server, number, counts) for number in (1, TOGETHER)}
            one, many = _in_turn(server, counts)
            server.end()
        within = inside(path, threads, prompts(TOGETHER), counts.tokens, counts.repeat)
        for number, share in shares.items():
            streams = f"{number} stream{'s' if number > 1 else ''}"
            measure = f"{streams}: time outside the engine"
            note = f"steps of {share.step_ms:.1f} ms; {share.once_ms:.0f} ms once, before the first token"
            if model is None:
                yield Row(case, measure, share.percent, "%", note=note)
            else:
                yield at_most(case, measure, share.percent, 5, "%", note=note)
        yield from _slower(case, "1 stream: slower than engine.generate", one, within["generate"])
        yield from _slower(case, f"{TOGETHER} streams: slower than no HTTP", many, within["scheduler"])


class _Spent(NamedTuple):
    """Seconds from the first request to the last token, seconds of steps among them, and how many steps."""

    wall: float
    engine: float
    steps: int


def _spent(server: Served, number: int, tokens: int, seed: int) -> _Spent:
    before = server.scheduler()
    asks = [going_on(prompt, tokens) for prompt in prompts(number, seed=seed)]
    found = play(server.url, [Lane([ask]) for ask in asks])
    after = server.scheduler()
    failed = next((heard for heard in found if heard.error or not heard.times), None)
    if failed is not None:
        raise OptionError(f"an answer failed: {failed.error}")
    wall = max(heard.times[-1] for heard in found) - min(heard.begin for heard in found)
    engine = after["engine_seconds"] - before["engine_seconds"]
    return _Spent(wall, engine, after["steps"] - before["steps"])


class _Share(NamedTuple):
    """Percent of the time of decoding in which no step was running, milliseconds of a step, and milliseconds besides
    steps that requests take once, before their first token."""

    percent: float
    step_ms: float
    once_ms: float


def _share(server: Served, number: int, counts: Counts) -> _Share:
    """Decoding is what long answers take longer than answers of one token."""
    found = []
    for turn in range(counts.repeat + 1):
        one = _spent(server, number, 1, seed=100 + 2 * turn)
        long = _spent(server, number, counts.tokens, seed=101 + 2 * turn)
        wall, engine = long.wall - one.wall, long.engine - one.engine
        steps = max(1, long.steps - one.steps)
        found.append(
            _Share(100 * (wall - engine) / wall, 1000 * engine / steps, 1000 * (one.wall - one.engine))
        )
    return _Share(*(statistics.median(values) for values in zip(*found[1:], strict=True)))


def _slower(case: str, measure: str, ours: list[float], theirs: list[float]) -> Iterator[Row]:
    served, plain = statistics.median(ours), statistics.median(theirs)
    note = f"{served:.1f} and {plain:.1f} tok/s"
    yield Row(case, measure, 100 * (plain - served) / plain, "%", note=note, values=ours)


# ── restart: the second turn of a long conversation ───────────────────────────────────────────────────────


class _Long(NamedTuple):
    """A conversation of two turns."""

    problem: Problem
    second: str

    def first(self) -> Ask:
        return chat(self.problem.conversation)

    def next(self, answer: str) -> Ask:
        ask = self.first()
        said = {"role": "assistant", "content": answer}
        ask.body["messages"] += [said, {"role": "user", "content": self.second}]
        return ask


def long_conversation(seed: int) -> _Long:
    return _Long(
        problem("lookup", Random(seed), length=LONG, thinking=Thinking.OFF), "Are you sure? Say it again."
    )


def restart(bench: Bench) -> Iterator[Row]:
    case = "restart"
    talk = long_conversation(6)
    colds: list[float] = []
    with bench.server() as server:
        (answered,) = play(server.url, [Lane([talk.first()])])
    for _ in range(bench.counts.repeat):
        with bench.server() as server:
            (cold,) = _asked(server, talk.next(answered.text))
            colds.append(cold.first_s)
    tokens = cold.usage["prompt_tokens"]
    yield Row(
        case, "cold second turn, to the first token", statistics.median(colds), "s", note=f"{tokens} tokens"
    )
    for name, ends in (("SIGTERM", Served.end), ("kill -9", _killed)):
        warm = [_second_turn(bench, talk, ends) for _ in range(bench.counts.repeat)]
        share = 100 * statistics.median(heard.first_s for heard in warm) / statistics.median(colds)
        note = f"{statistics.median(heard.first_s for heard in warm):.3f} s, {warm[0].cached} tokens cached"
        yield at_most(case, f"second turn after {name}, of the cold one", share, 10, "%", note=note)
        other = sum(heard.text != cold.text or heard.tokens != cold.tokens for heard in warm)
        yield at_most(case, f"other answers than cold after {name}", other, 0)


def _second_turn(bench: Bench, talk: _Long, ends: Callable[[Served], None]) -> Heard:
    folder = Path(tempfile.mkdtemp(prefix="penstock-kv-"))
    try:
        with bench.server("--kv-dir", str(folder)) as server:
            (first,) = play(server.url, [Lane([talk.first()])])
            ends(server)
        with bench.server("--kv-dir", str(folder)) as server:
            (second,) = _asked(server, talk.next(first.text))
            return second
    finally:
        shutil.rmtree(folder)


def _asked(server: Served, ask: Ask) -> list[Heard]:
    """After a few words to somebody else, so that the first request of all is not what is measured."""
    return play(server.url, [Lane([going_on(prompts(1)[0], 8), ask])])[1:]


def _killed(server: Served) -> None:
    """A moment after the answer: what is saved is saved while the next request is awaited."""
    time.sleep(1.0)
    server.kill()


# ── pace: a long prompt arrives while others are being answered ───────────────────────────────────────────


def pace(bench: Bench) -> Iterator[Row]:
    lead = 4.0  # seconds that the others have for themselves
    talk = long_conversation(7)
    with bench.server("--parallel", str(TOGETHER)) as server:
        play(server.url, [Lane([going_on(prompts(1, 600, seed=9)[0], 8)])])  # it knows its own speed then
        decoders = [Lane([going_on(prompt, 4000)], endless=True) for prompt in prompts(DECODERS)]
        found = play(server.url, [*decoders, Lane([talk.first()], after=lead)])
        server.end()
    late = next(heard for heard in found if heard.lane == DECODERS)
    if late.error or not late.times:
        raise OptionError(f"the long prompt got no answer: {late.error}")
    arrival, answer = late.begin, late.times[0]
    others = [heard for heard in found if heard.lane < DECODERS]
    before = _gaps(others, arrival - lead / 2, arrival)
    during = _gaps(others, arrival, answer)
    note = f"{late.usage['prompt_tokens']} tokens read in {answer - arrival:.1f} s"
    yield Row("pace", "the long prompt, to the first token", answer - arrival, "s", note=note)
    for percent in (50, 99):
        calm, busy = (1000 * float(np.percentile(gaps, percent)) for gaps in (before, during))
        yield Row("pace", f"between tokens before, p{percent}", calm, "ms")
        yield Row("pace", f"between tokens meanwhile, p{percent}", busy, "ms")
    slowed = statistics.mean(during) / statistics.mean(before)
    yield at_most("pace", "time between tokens, meanwhile to before", slowed, 2, "×", note="means")


def _gaps(found: Sequence[Heard], begin: float, end: float) -> list[float]:
    return [
        late - early
        for heard in found
        for early, late in zip(heard.times, heard.times[1:], strict=False)
        if begin <= early and late <= end
    ]


CASES: Final[dict[str, Callable[[Bench], Iterator[Row]]]] = {
    "streams": streams,
    "batch": batch,
    "overhead": overhead,
    "restart": restart,
    "pace": pace,
}

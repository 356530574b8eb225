"""Drafts on a GPU: `python -m benchmarks.speculation --gpu --synth /dev/shm/q2.gguf`.

forced   greedy text of random weights at 2k of context; a drafter that knows it is right with the chance 0.8
ngram    the same text, which the session has read before, and what followed last time
wrong    the same text, and a drafter that is never right
random   sampled at a temperature at which nobody can guess

Steps by their rows are measured first, without drafts being judged: what rows of one session cost.

With `--dspark` the model has a DSpark module, and what is forced takes the time that its guesses take.  What a block
of these costs is measured too, and what a step costs that the module follows.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from benchmarks.forced_drafts import forced
from benchmarks.gpu import aged, say
from penstock import Engine, Sampling
from penstock.engine.engine import RECORDED
from penstock.weights.synth import plan_synth, write_synth

CONTEXT: Final = 2048
GREEDY: Final = Sampling(temperature=0.0, ignore_eos=True)
TARGETS: Final = {"forced": 1.5, "ngram": 0.97, "wrong": 0.97, "random": 0.97}
SAMPLINGS: Final = {"random": Sampling(temperature=50.0, seed=1, ignore_eos=True)}
OLD: Final = 64  # where in the past it was
WIDTHS: Final = (1, 2, 3, 4, 5, 8)


def widths(engine: Engine, repeats: int = 12) -> dict[int, float]:
    """Milliseconds of a step by its rows, all of one session, until the host could judge them."""
    found = {}
    for rows in WIDTHS:
        session, times = aged(engine, CONTEXT), []
        for _ in range(repeats):
            begin = time.perf_counter()
            (logits,) = engine.stepper.advance([(session, [5] * rows, rows)])
            generation = engine.generation(session, [], rows + 1, GREEDY)
            assert logits is not None
            generation.start(*logits)
            for row in logits:
                generation.next(row)
            times.append(time.perf_counter() - begin)
            session.rewind(rows)
        found[rows] = round(1e3 * statistics.median(times[RECORDED + 1 :]), 3)
    return found


def blocks(engine: Engine, repeats: int = 24) -> dict[str, float]:
    """Milliseconds of a block of guesses, until the host has them; and of a step that the module follows or not."""
    session, found = aged(engine, CONTEXT), dict[str, float]()

    def median(work: Callable[[], object]) -> float:
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return round(1e3 * statistics.median(times[RECORDED + 1 :]), 3)

    def step() -> None:
        (logits,) = engine.stepper.advance([(session, [5], 1)])
        generation = engine.generation(session, [], 2, GREEDY)
        assert logits is not None
        generation.start(*logits)
        generation.next(logits[0])
        session.rewind(1)

    found["block"] = median(lambda: engine.stepper.draft(session, 5, 5, 0.0))
    for name, wanted in (("step", False), ("followed step", True)):
        engine.stepper.keep_up(wanted)
        found[name] = median(step)
    return found


def answer(
    engine: Engine, sampling: Sampling, tokens: int, known: Sequence[int] = ()
) -> tuple[list[int], float]:
    """What is said after the same past, and seconds per token.  known: what the past is told to have been in part;
    its rows in memory are random and stay as they are, so that only drafters notice"""
    session, said = aged(engine, CONTEXT), list[int]()
    session._tokens[OLD : OLD + len(known)] = known
    begin = 0.0
    for step in engine.generate([5], tokens, sampling, session):
        said.append(step.token)
        begin = begin or time.perf_counter()
    return said, (time.perf_counter() - begin) / (len(said) - 1)


def measure(engine: Engine, kind: str, tokens: int, rounds: int, drafter: str) -> dict[str, Any]:
    sampling = SAMPLINGS.get(kind, GREEDY)
    drafting = engine.new_speculation()
    assert drafting is not None
    engine.speculation = None
    wanted, _ = answer(engine, sampling, tokens)
    text = [*aged(engine, CONTEXT).tokens, 5, *wanted]
    right = {"forced": 0.8, "wrong": 0.0}.get(kind)
    spent: dict[str, list[float]] = {"off": [], "draft": []}
    for number in range(rounds + 1):  # the first one teaches the gate
        for name, speculation in (("off", None), ("draft", drafting)):
            engine.speculation = speculation
            with forced(text, right, drafter) if speculation and right is not None else nullcontext():
                said, seconds = answer(engine, sampling, tokens, wanted if kind == "ngram" else ())
            assert said == wanted, f"{kind}, {name}: another text"
            if number:
                spent[name].append(seconds)
    off, draft = (statistics.median(spent[name]) for name in ("off", "draft"))
    stats = drafting.stats()
    drafted, accepted = stats["drafted"][drafter], stats["accepted"][drafter]
    return {
        "text": kind,
        "plain_tokens_per_second": round(1 / off, 1),
        "tokens_per_second": round(1 / draft, 1),
        "speedup": round(off / draft, 3),
        "target": TARGETS[kind],
        "right_by_place": [round(a / n, 2) for a, n in zip(accepted, drafted, strict=True) if n],
        "drafted": drafted,
        "steps_with_drafts": round(stats["steps_with_drafts"] / max(1, stats["steps"]), 2),
        "gate_ms_by_rows": [round(1e3 * drafting.costs.at(rows), 2) for rows in (1, 2, 3, 4, 5)],
        "gain_by_the_gate": round(stats["gain"], 3),
    }


def run(
    path: Path, *, layers: int | None, tokens: int, rounds: int, kinds: list[str], dspark: bool = False
) -> None:
    """Every line is JSON."""
    if not path.exists():
        write_synth(plan_synth(width="flash", layers=layers, mix="q2", dspark=3 if dspark else 0), path)
    drafter = "dspark" if dspark else "ngram"
    with Engine(path, device="cuda", draft=drafter, context=2 * CONTEXT + tokens, sessions=4) as engine:
        say("widths", ms_by_rows=widths(engine))
        if dspark:
            say("module", ms=blocks(engine))
        for kind in kinds:
            say("drafts", **measure(engine, kind, tokens, rounds, drafter))

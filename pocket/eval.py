"""How good the pocket model is, skill by skill, on problems it has not seen.

    python -m pocket.eval [--model FILE] [--count 100] [--seed 1] [--json]

Everything runs through Penstock's own engine on the file that ships.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from penstock.chat.deepseek_v4.render import render
from penstock.chat.messages import Thinking
from penstock.engine.engine import Engine
from penstock.errors import OptionError
from penstock.pocket import pocket_path
from pocket.answer import answers
from pocket.data import Answer, Problem, problem
from pocket.data.arithmetic import addition
from pocket.data.core import Exchange, Request, dialogue


@dataclass(frozen=True)
class Row:
    name: str
    bar: float | None  # the share that has to be right
    make: Callable[[Random], Problem]
    share: float = 1.0  # of --count: long problems take long
    max_tokens: int = 300


def two_digit_addition(thinking: bool) -> Callable[[Random], Problem]:
    def make(rng: Random) -> Problem:
        exchange: Exchange = addition(rng.randint(10, 99), rng.randint(10, 99), rng)
        made = dialogue([exchange], Request(thinking=thinking))
        reference = made.conversation.messages[-1]
        conversation = made.conversation
        asked = type(conversation)(conversation.messages[:-1], thinking=conversation.thinking)
        return Problem(asked, reference.content, exchange.check, Answer(content=reference.content))

    return make


def skill(
    name: str, length: int | None = None, thinking: Thinking | None = None
) -> Callable[[Random], Problem]:
    return lambda rng: problem(name, rng, length=length, thinking=thinking)


ROWS = [
    Row("two-digit addition", 0.95, two_digit_addition(thinking=False)),
    Row("two-digit addition, thinking", 0.95, two_digit_addition(thinking=True)),
    Row("arithmetic, all kinds, thinking", None, skill("arithmetic", thinking=Thinking.HIGH)),
    Row("look-up at 500 tokens", 0.95, skill("lookup", 500)),
    Row("look-up at 2,000 tokens", 0.95, skill("lookup", 2000), share=0.5),
    Row("look-up at 6,000 tokens", 0.80, skill("lookup", 6000), share=0.3),
    Row("look-up of what is not there", None, skill("unstated", 500)),
    Row("tool calls, unseen tools", 0.90, skill("tools")),
    Row("valid, correct JSON", 0.95, skill("json")),
    Row("copying", None, skill("copy")),
    Row("sorting", None, skill("sort")),
    Row("counting", None, skill("count")),
    Row("reversing", None, skill("reverse")),
    Row("facts", None, skill("facts")),
    Row("several turns", None, skill("chat")),
    Row("stories", None, skill("story"), share=0.3, max_tokens=500),
]


PLACES: Final = {
    "first": 0.6,
    "second": 0.6,
    "third": 0.6,
    "fourth": 0.6,
}  # of drafts in a row, and their bars


def measure(engine: Engine, row: Row, count: int, seed: int) -> tuple[int, int, int]:
    """(right, obedient to the chat format, tried)"""
    rng = Random(f"{row.name}/{seed}")
    problems = [row.make(rng) for _ in range(max(1, int(count * row.share)))]
    right = obedient = 0
    for asked, answer in zip(problems, answers(engine, problems, row.max_tokens), strict=True):
        right += asked.check(answer)
        thinks = asked.conversation.thinking is not Thinking.OFF
        obedient += answer.finished and bool(answer.reasoning) == thinks
    return right, obedient, len(problems)


def story_prompts(count: int, seed: int) -> Iterator[Problem]:
    rng = Random(f"draft/{seed}")
    for _ in range(count):
        yield problem("story", rng, thinking=Thinking.OFF)


def draft_acceptance(engine: Engine, count: int, seed: int) -> list[tuple[int, int]]:
    """Of the draft block's guesses in a row during greedy stories, how many the trunk agrees with: (agreed, made) by
    place, each where those before it were right."""
    if not engine.checkpoint.has_mtp:
        raise OptionError(f"{engine.checkpoint.path}: the model has no MTP block")
    counts = [[0, 0] for _ in PLACES]
    for asked in story_prompts(count, seed):
        session, ends = engine.session(), set(engine.config.eos_ids)
        logits = session.feed(render(asked.conversation).ids(engine.tokenizer))
        said: list[int] = []
        guessed: list[list[int]] = []  # after each of these
        while len(said) < 200 and not (said and said[-1] in ends):
            assert logits is not None
            said.append(int(logits.argmax()))
            guessed.append([token for token, _ in engine.stepper.draft(session, said[-1], len(PLACES), 0.0)])
            logits = session.feed(said[-1:])
        for place, guesses in enumerate(guessed, 1):
            for own, guess, token in zip(counts, guesses, said[place:], strict=False):
                own[1] += 1
                own[0] += guess == token
                if guess != token:
                    break
    return [(agreed, made) for agreed, made in counts]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.eval")
    parser.add_argument("--model", type=Path, default=None, help="the shipped file if not given")
    parser.add_argument("--count", type=int, default=100, help="problems per skill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="only rows whose name contains this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = Engine(options.model or pocket_path())
    results: dict[str, float] = {}
    obedient = tried = 0
    if not options.json:
        print(f"{'skill':38} {'right':>7} {'bar':>5} {'problems':>8} {'seconds':>8}    (seed {options.seed})")

    def show(name: str, share: float, bar: float | None, count: int, since: float) -> None:
        results[name] = share
        if not options.json:
            seconds, wanted = time.perf_counter() - since, "" if bar is None else f"{bar:.0%}"
            print(f"{name:38} {share:7.1%} {wanted:>5} {count:8} {seconds:8.0f}", flush=True)

    begin = time.perf_counter()
    for row in ROWS:
        if options.only and options.only not in row.name:
            continue
        since = time.perf_counter()
        right, kept, count = measure(engine, row, options.count, options.seed)
        obedient, tried = obedient + kept, tried + count
        show(row.name, right / count, row.bar, count, since)
    if tried:
        show("chat format kept (thinking on/off)", obedient / tried, 1.0, tried, begin)
    if not options.only or "draft" in options.only:
        since = time.perf_counter()
        found = draft_acceptance(engine, max(1, options.count // 10), options.seed)
        for (place, bar), (agreed, made) in zip(PLACES.items(), found, strict=True):
            show(f"{place} draft accepted, stories", agreed / max(1, made), bar, made, since)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()

"""One file, one number of threads, two engines in turn; and which llama.cpp is one of them."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks import llamacpp_source
from benchmarks.children import ChildError, EngineChild, busy_core
from benchmarks.llamacpp_source import Source
from benchmarks.machine import Neighbours
from penstock.machine.memory import read_memory

MEASURES = ("start", "decode", "prefill", "busy")
ENGINES = ("penstock", "llama")
PENSTOCK = Source("penstock", Path(sys.executable))
REPACKED = 2.2  # memory that a repacked model needs at most, in file sizes: the mapped file and the copy
TRIAL = 16  # tokens decoded to see which llama.cpp is faster


@dataclass(frozen=True)
class Plan:
    """What is run on each file."""

    measures: tuple[str, ...]
    threads: tuple[int, ...]
    repeat: int
    prompt: int
    decode: int
    prefill: int
    repack: str
    engines: tuple[str, ...]
    llama: str  # which of them, or "auto"

    @property
    def context(self) -> int:
        return -(-max(self.prompt + self.decode, self.prefill) // 256) * 256


class Values(NamedTuple):
    """By engine, one value per repetition; and how many cores others kept busy meanwhile."""

    by_engine: dict[str, list[float]]
    neighbours: float


@dataclass(frozen=True)
class Contest:
    """Both engines on one file with one number of threads."""

    plan: Plan
    model: Path
    threads: int
    engines: dict[str, Source]  # "penstock", and "llama" if there is one
    repack: bool
    ids: list[int]

    def child(self, engine: str) -> EngineChild:
        source = self.engines[engine]
        return EngineChild(
            source.python,
            engine=source.name,
            model=self.model,
            threads=self.threads,
            context=self.plan.context,
            repack=self.repack,
            first=self.ids[0],
        )

    def rounds(self) -> Iterator[str]:
        """Engines in turn; who goes first changes."""
        names = list(self.engines)
        for number in range(self.plan.repeat):
            yield from names if number % 2 == 0 else reversed(names)

    def starts(self) -> Values:
        """Seconds from starting a process to its first token."""
        found: dict[str, list[float]] = {name: [] for name in self.engines}
        others = Neighbours()
        for name in self.rounds():
            with self.child(name) as child:
                found[name].append(child.start_s)
        return Values(found, others.cores())

    def request(self, measure: str) -> dict[str, Any]:
        if measure == "prefill":
            return {"do": "prefill", "ids": self.ids[: self.plan.prefill]}
        prompt, stop = self.plan.prompt, self.plan.prompt + self.plan.decode
        return {"do": "decode", "prompt": self.ids[:prompt], "ids": self.ids[prompt:stop]}

    def speeds(self, children: dict[str, EngineChild], measure: str) -> Values:
        """Tokens per second."""
        request = self.request(measure)
        found: dict[str, list[float]] = {name: [] for name in self.engines}
        others = Neighbours([child.pid for child in children.values()])
        with busy_core() if measure == "busy" else nullcontext():
            for name in self.rounds():
                found[name].append(len(request["ids"]) / children[name].ask(**request)["seconds"])
        return Values(found, others.cores())

    def run(self) -> Iterator[tuple[str, Values]]:
        """Every measure and what was found, as soon as it is known."""
        if "start" in self.plan.measures:
            yield "start", self.starts()
        running = [measure for measure in self.plan.measures if measure != "start"]
        if running:
            with ExitStack() as stack:
                children = {name: stack.enter_context(self.child(name)) for name in self.engines}
                # Every page is mapped and every thread made before anything counts.
                for child in children.values():
                    child.ask(do="prefill", ids=self.ids[: self.plan.context])
                for measure in running:
                    yield measure, self.speeds(children, measure)


class Found(NamedTuple):
    source: Source
    version: str
    seconds: float  # per token, in a short trial


def fastest(plan: Plan, model: Path, ids: list[int], repack: bool, console: Console) -> Found | None:
    """The llama.cpp that decodes this file fastest with most threads, or None.  Says what was found."""
    found = []
    for source in llamacpp_source.sources():
        if plan.llama not in ("auto", source.name):
            continue
        contest = Contest(plan, model, max(plan.threads), {"llama": source}, repack, ids)
        try:
            with contest.child("llama") as child:
                child.ask(do="prefill", ids=ids[:256])
                seconds = min(
                    child.ask(do="decode", prompt=ids[:8], ids=ids[8 : 8 + TRIAL])["seconds"]
                    for _ in range(3)
                )
        except ChildError as error:
            lines = str(error).splitlines()
            refused = next((line for line in lines if "unknown model architecture" in line), lines[-1])
            console.print(f"{source.name} cannot run this file: {refused}", markup=False)
            continue
        version = f"{source.name} {child.first['version']}, {'' if repack else 'not '}repacked"
        features = child.first["features"].replace(" = 1", "").replace(" |", "").strip()
        console.print(f"{version}: {TRIAL / seconds:.1f} tok/s ({features})", markup=False)
        found.append(Found(source, version, seconds / TRIAL))
    if not found:
        console.print("no llama.cpp here, so Penstock runs alone (--build compiles one; it needs a network)")
    return min(found, key=lambda each: each.seconds, default=None)


def may_repack(plan: Plan, model: Path, console: Console) -> bool:
    """llama.cpp's default is a second copy of the weights in the CPU's favourite order."""
    if plan.repack != "auto":
        return plan.repack == "on"
    if read_memory().room > REPACKED * model.stat().st_size:
        return True
    console.print("llama.cpp does not repack here: a second copy of the weights would not fit in memory")
    return False

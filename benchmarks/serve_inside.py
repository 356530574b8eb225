"""The same tokens as a server makes, in this process and without HTTP: what serving is compared with.

python -m benchmarks.serve_inside '{"model": …, "threads": 1, "prompts": […], "tokens": 128, "repeat": 3}'
"""

import json
import queue
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import penstock
from benchmarks.children import ROOT, ChildError
from penstock.engine.prefix_cache import PrefixCache
from penstock.engine.requests import Failed, Request, Update
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step


def inside(
    model: Path, threads: int, prompts: Sequence[list[int]], tokens: int, repeat: int
) -> dict[str, Any]:
    """Tokens per second, by number of streams, in a new process: {"generate": […], "scheduler": […]}; the first
    from `engine.generate` with the first prompt, the second from the scheduler with all of them."""
    order = {"model": str(model), "threads": threads, "prompts": list(prompts)}
    command = [sys.executable, "-m", "benchmarks.serve_inside"]
    done = subprocess.run(
        [*command, json.dumps(order | {"tokens": tokens, "repeat": repeat})],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise ChildError(f"the engine ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def generated(engine: penstock.Engine, prompt: list[int], tokens: int) -> float:
    """Tokens per second after the first, one stream."""
    sampling = penstock.Sampling(temperature=0, ignore_eos=True)
    steps = engine.generate(prompt, tokens, sampling)
    next(steps)
    begin = time.perf_counter()
    count = sum(1 for _ in islice(steps, tokens))
    return count / (time.perf_counter() - begin)


def scheduled(engine: penstock.Engine, prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second after the first of each, all streams together."""
    sampling = penstock.Sampling(temperature=0, ignore_eos=True)
    scheduler = Scheduler(engine, len(prompts), prefix_cache=PrefixCache(engine, 1 << 30))
    happened: queue.SimpleQueue[tuple[float, Update]] = queue.SimpleQueue()

    def tell(update: Update) -> None:
        happened.put((time.perf_counter(), update))

    for prompt in prompts:
        scheduler.submit(Request(prompt, tokens, sampling, tell))
    scheduler.start()
    times: list[float] = []
    ended = 0
    while ended < len(prompts):
        at, update = happened.get()
        if isinstance(update, Failed):
            raise update.error
        if isinstance(update, Step):
            times.append(at)
            ended += update.finish_reason is not None
    scheduler.stop()
    return (len(times) - len(prompts)) / (times[-1] - times[0])


def main() -> None:
    order = json.loads(sys.argv[1])
    tokens, repeat = order["tokens"], order["repeat"]
    engine = penstock.Engine(order["model"], threads=order["threads"])
    prompts: list[list[int]] = order["prompts"]
    generated(engine, prompts[0], min(tokens, 16))
    found = {
        "generate": [generated(engine, prompts[0], tokens) for _ in range(repeat)],
        "scheduler": [scheduled(engine, prompts, tokens) for _ in range(repeat)],
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

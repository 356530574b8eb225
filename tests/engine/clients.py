"""Requests whose answers are kept, and an engine to ask."""

import threading

import numpy as np

from penstock.engine.engine import Engine
from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Failed, Request, Scored, Update
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step


class Client:
    """Keeps what a request is told."""

    def __init__(
        self,
        prompt: list[int],
        max_tokens: int = 8,
        shared: int = 0,
        score: int | None = None,
        pin: str = "",
        **sampling: object,
    ):
        self.updates: list[Update] = []
        self.over = threading.Event()
        options = Sampling(ignore_eos=True, **{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
        self.request = Request(prompt, max_tokens, options, self.tell, shared, score=score, pin=pin)

    def tell(self, update: Update) -> None:
        self.updates.append(update)
        ends = isinstance(update, Step) and update.finish_reason
        if ends or isinstance(update, Failed) or (isinstance(update, Scored) and update.last):
            self.over.set()

    @property
    def tokens(self) -> list[int]:
        return [update.token for update in self.updates if isinstance(update, Step)]

    @property
    def scores(self) -> list[Step]:
        return [step for update in self.updates if isinstance(update, Scored) for step in update.steps]

    @property
    def readings(self) -> list[PrefillProgress]:
        return [update for update in self.updates if isinstance(update, PrefillProgress)]

    @property
    def failure(self) -> BaseException | None:
        return next((update.error for update in self.updates if isinstance(update, Failed)), None)


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()  # type: ignore[no-any-return]


def alone(engine: Engine, client: Client) -> list[int]:
    request = client.request
    return [step.token for step in engine.generate(request.prompt, request.max_tokens, request.sampling)]


def finish(scheduler: Scheduler) -> None:
    while scheduler.active or scheduler.waiting:
        scheduler.loop.step()

"""Who runs steps: the model in this process, or several machines (`penstock.cluster`), which nobody notices."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Array, Backend, Choice, Logits
from penstock.backend.state import StateMemory, StatePool, Step
from penstock.engine.options import EngineOptions
from penstock.errors import DeviceFullError, OptionError
from penstock.model import architecture
from penstock.model.base import Architecture
from penstock.storage.plan import Plan
from penstock.storage.storage import Storage, open_storage
from penstock.storage.store import ExpertStore
from penstock.weights.checkpoint import Checkpoint

Pending = Callable[[], Logits]


class Runner(ABC):
    """Runs steps over the sequences in `states`.  Used by one thread at a time."""

    states: StateMemory
    model: Architecture  # what this process has of it
    storage: Storage  # where its weights are
    depth = 1  # steps that can be under way at the same time
    shares = 1  # steps that those who decode are best shared out over
    expects = False  # whether it is of any use to `expect`
    draft_seconds = 0.0  # of the latest step, what went into drafts that came with its logits

    def run(self, step: Step, progress: Callable[[float], None] | None = None) -> Logits:
        """Logits of the rows that the step wants [rows, vocab].  Nothing counts before it is committed.  progress:
        see `Architecture.forward`."""
        return self.begin(step, progress)()

    @abstractmethod
    def begin(self, step: Step, progress: Callable[[float], None] | None = None) -> Pending:
        """Begins a step; calling the result waits for its logits, as `run` gives them.  Up to `depth` steps may be
        under way, over different sequences."""

    def commit(self, step: Step, kept: Sequence[int] | None = None) -> None:
        """Of each sequence's tokens in the step the first so many become part of its state (None: all).  At most
        `max_rewind` may be left out: drafts that were not accepted.

        A step that wants no logits may be committed while it is under way, and its sequences may be in the next
        one; if it fails then, their states are lost (`RemoteStates`)."""
        for number, slot in enumerate(step.slots):
            start, stop = step.starts[number], step.starts[number + 1]
            count = stop - start if kept is None else kept[number]
            if not 0 <= stop - start - count <= self.states.layout.max_rewind:
                raise OptionError(f"{count} of {stop - start} tokens cannot be kept")
            self.states.commit(slot, int(step.positions[start]) + count)

    def discard(self, step: Step) -> None:
        """The sequences are as they were before the step."""
        for slot in step.slots:
            self.states.discard(slot)

    @abstractmethod
    def draft_logits(self, slot: int, position: int, token: int) -> Logits:
        """See `Architecture.draft_logits`."""

    @abstractmethod
    def draft(self, slot: int, position: int, token: int, most: int, least: float) -> list[tuple[int, float]]:
        """See `Architecture.draft`."""

    def piece(self, tokens: int, most: int) -> int:
        """How many tokens of a prompt with so many are best read in a step, `most` at most."""
        del tokens
        return most

    def expect(self, slot: int, choices: Sequence[Choice]) -> None:  # noqa: B027 - of use where logits are far away
        """Tokens will be chosen so from the first rows of this sequence that have logits in the next step."""

    def settle(self, slot: int | None = None) -> None:  # noqa: B027 - most steps leave nothing for later
        """See `Architecture.settle`."""

    def draft_knows(self, slot: int, position: int) -> bool:
        """See `Architecture.draft_knows`."""
        del slot, position  # who does not know better keeps up
        return True

    def keep_up(self, wanted: bool) -> None:  # noqa: B027 - likewise
        """See `Architecture.keep_up`."""

    def waits(self) -> tuple[int, float]:
        """So far: bytes of experts that had to come, and seconds that steps waited for them."""
        return 0, 0.0

    @abstractmethod
    def announce(self, tokens: Sequence[int]) -> None:
        """These tokens will probably be in the next step."""

    @abstractmethod
    def close(self) -> None:
        """The weights leave memory; sequences stay."""


class LocalRunner(Runner):
    """A model, or layers of it that follow each other, with its weights in this process's memory."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        states: StatePool,
        model: Architecture,
        storage: Storage,
    ):
        self.checkpoint, self.backend, self.states = checkpoint, backend, states
        self.model, self.storage = model, storage

    def begin(self, step: Step, progress: Callable[[float], None] | None = None) -> Pending:
        hidden = self.forward(step, progress=progress)
        logits = self.logits(hidden, step)
        self.backend.check()
        return lambda: logits

    def forward(
        self,
        step: Step,
        hidden: NDArray[np.float32] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Array:
        """See `Architecture.forward`."""
        self.storage.begin_step(step.rows)
        while True:
            try:
                return self.model.forward(step, hidden, progress)
            except DeviceFullError:  # another program has taken memory
                self.discard(step)
                if not self.storage.shrink():
                    raise

    def logits(self, hidden: Array, step: Step) -> Logits:
        """Of what `forward` gave."""
        return self.model.logits(hidden, step) if len(step.logits) else np.empty((0, 0), np.float32)

    def draft_logits(self, slot: int, position: int, token: int) -> Logits:
        logits = self.model.draft_logits(slot, position, token)
        self.backend.check()
        return logits

    def draft(self, slot: int, position: int, token: int, most: int, least: float) -> list[tuple[int, float]]:
        found = self.model.draft(slot, position, token, most, least)
        self.backend.check()
        return found

    def settle(self, slot: int | None = None) -> None:
        self.model.settle(slot)

    def draft_knows(self, slot: int, position: int) -> bool:
        return self.model.draft_knows(slot, position)

    def keep_up(self, wanted: bool) -> None:
        self.model.keep_up(wanted)

    def waits(self) -> tuple[int, float]:
        return self.storage.waits()

    def announce(self, tokens: Sequence[int]) -> None:
        self.model.announce(np.array(tokens, np.int64))

    def close(self) -> None:
        self.storage.close()
        for file in self.storage.dense.checkpoint.files:
            file.expect_nothing()


def open_runners(
    checkpoint: Checkpoint,
    backend: Backend,
    states: Sequence[StatePool],
    plan: Plan,
    options: EngineOptions,
    fingerprint: Callable[[], str],
    progress: Callable[[int, int], None],
    *,
    shared: Callable[[ExpertStore], ExpertStore] | None = None,
) -> list[LocalRunner]:
    """Reads the weights to memory as the plan says, and gives a runner for each stretch of layers, with its states.
    They share the weights, which leave when any is closed.

    shared: the experts as layers see them, where other machines compute some
    """
    described = architecture(checkpoint.config)
    storage = open_storage(
        checkpoint,
        backend,
        plan,
        policy=options.policy,
        pack=options.pack,
        trace=options.trace,
        governed=options.memory == "auto",
        learn=options.learn == "on",
        exact=options.exact,
        fingerprint=fingerprint,
    )
    try:
        experts = storage.experts if shared is None else shared(storage.experts)
        found = []
        for stretch, own in zip(checkpoint.stretches, states, strict=True):
            part = checkpoint if len(states) == 1 else checkpoint.slice(stretch)
            model = described.build(
                part, backend, own, experts, storage.dense, prefetch=options.prefetch == "auto"
            )
            found.append(LocalRunner(part, backend, own, model, storage))
        storage.dense.load(progress)
        storage.preload()
    except BaseException:
        storage.close()  # nothing may be read to memory that goes away
        raise
    return found


class Loading:
    """How far the reading of weights is, in bytes."""

    def __init__(self, tell: Callable[[int, int], None] | None = None):
        self.done = self.total = 0
        self._tell = tell

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._tell is not None:
            self._tell(done, total)

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0

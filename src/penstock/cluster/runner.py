"""A runner of steps whose layers are on several machines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.backend.base import Choice, Chosen, Logits
from penstock.backend.state import Step
from penstock.cluster.choosing import Best, RemoteLogits, Row, is_best, ride
from penstock.cluster.message import Message
from penstock.cluster.pieces import PromptPieces
from penstock.cluster.pipeline import Epoch, Pipeline
from penstock.cluster.states import ClusterStates
from penstock.engine.runner import Pending, Runner
from penstock.model.base import Architecture
from penstock.storage.storage import Storage


class Ridden(NamedTuple):
    """Drafts that came with a step's logits, for a sequence that goes on with `token` at `position`."""

    position: int
    token: int
    guesses: list[tuple[int, float]]


class ClusterRunner(Runner):
    """The first stage is this process's own; it computes in `begin`, and the others while nobody waits.

    The draft block is on the last stage, which is as far away as a step's logits are.  So it is not asked: it guesses
    on from the tokens that it finds likeliest, and what it guesses comes with the logits.
    """

    states: ClusterStates
    expects = True

    def __init__(self, pipeline: Pipeline, states: ClusterStates):
        assert pipeline.stages is not None
        self._pipeline, self.states = pipeline, states
        self._stages = pipeline.stages
        self.shares = pipeline.head.stages
        self.depth = self.shares * len(self._stages)  # nobody waits for the next piece of a prompt, then
        self._pieces = PromptPieces.of(self._stages.first.runner.checkpoint.config)  # loads the weights
        self._follows = True  # see `keep_up`
        self._wanted: tuple[int, float] | None = (
            None  # drafts that are to come with steps: most, least likely
        )
        self._ridden: dict[int, Ridden] = {}  # by sequence
        self._expected: dict[int, Sequence[Choice]] = {}  # by sequence, for its next step

    @property
    def storage(self) -> Storage:  # type: ignore[override]
        return self._stages.first.runner.storage

    @property
    def model(self) -> Architecture:  # type: ignore[override]
        return self._stages.first.runner.model

    def begin(self, step: Step, progress: Callable[[float], None] | None = None) -> Pending:
        epoch = self._pipeline.current()
        stage = self._pipeline.own(epoch)
        share = 1 / self.depth
        tell = None if progress is None else lambda done: progress(done * share)
        with self._pipeline.computing:
            local, before = stage.local_step(step), stage.busy_seconds
            streams = stage.forward(local, None, tell)
        self._pieces.took(step.rows, stage.busy_seconds - before)
        arrays = {"tokens": step.tokens, "positions": step.positions, "logits": step.logits}
        fields: dict[str, Any] = {
            "number": epoch.number(),
            "slots": list(step.slots),
            "starts": list(step.starts),
        }
        if self._wanted is not None:
            fields["draft"] = list(self._wanted)
        if not self._follows:
            fields["follow"] = False
        choosing = {step.slots[number] for number in _sequences(step)}
        expected = {slot: self._expected.pop(slot) for slot in choosing if slot in self._expected}
        message = Message("step", fields, arrays)
        ride(message, expected)
        message = self._stages.crossing(stage.passed_on(message, local, streams))
        back = epoch.through(message)
        return lambda: self._logits(epoch, step, back, expected)

    def expect(self, slot: int, choices: Sequence[Choice]) -> None:
        if not all(map(is_best, choices)):
            self._expected[slot] = choices

    def _logits(
        self, epoch: Epoch, step: Step, back: Callable[[], Message], expected: Mapping[int, Sequence[Choice]]
    ) -> Logits:
        message = back()
        for slot, position, token, tokens, chances in message.fields.get("drafts", ()):
            self._ridden[slot] = Ridden(position, token, list(zip(tokens, chances, strict=True)))
        self.draft_seconds = message.fields.get("draft_seconds", 0.0)
        if "all" in message.arrays:
            found: Logits = message.arrays["all"]
            return found
        if not len(step.logits):
            return np.empty((0, 0), np.float32)
        chosen = {
            (slot, row): (expected[slot][row], Chosen(*found))
            for slot, row, *found in message.fields.get("chosen", ())
        }
        rows, seen = [], dict.fromkeys(step.slots, 0)
        tokens, bests = message.arrays["tokens"].tolist(), message.arrays["bests"].tolist()
        for sequence, token, (highest, log_sum) in zip(_sequences(step), tokens, bests, strict=True):
            slot = step.slots[sequence]
            best, number = Best(token, highest, log_sum), seen[slot]
            rows.append(Row(slot, message.fields["number"], number, best, chosen.get((slot, number))))
            seen[slot] += 1
        return RemoteLogits(epoch, rows, self.states.layout.vocab_size).for_the_engine()

    def piece(self, tokens: int, most: int) -> int:
        """See `PromptPieces`.  Where experts come from a disk or are on a device, every piece pays much more for
        them: few are best."""
        if self._pipeline.head.options.prefill_chunk is not None or not self._pipeline.in_memory:
            return most
        return self._pieces.size(tokens, self.shares, most, len(self._stages))

    def draft_logits(self, slot: int, position: int, token: int) -> Logits:
        found: Logits = self._pipeline.ask("draft_logits", slot, position, token).arrays["logits"]
        return found

    def draft(self, slot: int, position: int, token: int, most: int, least: float) -> list[tuple[int, float]]:
        self._wanted, self._follows = (most, least), True  # from the next step on
        ridden = self._ridden.pop(slot, None)
        if ridden is None or ridden[:2] != (
            position,
            token,
        ):  # nobody guessed this token, or it is too long ago
            return []
        return ridden.guesses[:most]

    def keep_up(self, wanted: bool) -> None:
        self._follows = wanted
        if not wanted:
            self._wanted = None
            self._ridden.clear()
        elif self._wanted is None:
            self._wanted = 1, 0.0

    def announce(self, tokens: Sequence[int]) -> None:
        self._stages.announce(tokens)

    def close(self) -> None:
        """Every stage gives the memory of its weights back, and loads them again when the next step comes."""
        self._pipeline.park()


def _sequences(step: Step) -> list[int]:
    """Whose rows have logits: numbers of sequences, one for each of these rows."""
    found: list[int] = (np.searchsorted(step.starts, step.logits, side="right") - 1).tolist()
    return found

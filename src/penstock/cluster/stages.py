"""What one machine has of a model: a stage, or several between which other machines have theirs.

Layers that take turns leave others waiting for less of a prompt: the second machine begins when the first one has
done its first stretch of a piece, and not all of its layers.  For that every token crosses more links.
"""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend
from penstock.backend.state import StatePool
from penstock.cluster.boundary import Arriving, as_boundary
from penstock.cluster.message import Message, take
from penstock.cluster.split import said_layers
from penstock.cluster.stage import Runners, Stage
from penstock.engine.options import EngineOptions
from penstock.engine.planning import open_states, state_layout
from penstock.engine.runner import LocalRunner
from penstock.errors import ClusterError, OptionError
from penstock.storage.plan import Plan
from penstock.weights.checkpoint import Checkpoint


class Stages:
    """One for each stretch of layers, by turn.  Used by one thread at a time.
    boundary: what streams are as they cross to another machine"""

    def __init__(
        self,
        number: int,
        backend: Backend,
        states: Sequence[StatePool],
        open_runners: Callable[[], list[LocalRunner]],
        boundary: str,
    ):
        self.states, self._boundary, self._arriving = states, boundary, Arriving()
        self._runners = Runners(backend, open_runners)
        self._by_turn = [
            Stage(number, turn, backend, pool, self._runners) for turn, pool in enumerate(states)
        ]

    @property
    def first(self) -> Stage:
        return self._by_turn[0]

    @property
    def last(self) -> Stage:
        return self._by_turn[-1]

    def __len__(self) -> int:
        return len(self._by_turn)

    def renumber(self, number: int) -> None:
        """Its place among the machines is another one now."""
        for stage in self._by_turn:
            stage.number = number

    def open_with(self, open_runners: Callable[[], list[LocalRunner]]) -> None:
        """How weights are loaded from now on."""
        self._runners.open_with(open_runners)

    def process(self, message: Message) -> Message:
        """What came from another machine, by the stage whose turn it is; the result is as it crosses to the next."""
        (turn,) = take(message.fields, turn=int)
        if not 0 <= turn < len(self):
            raise ClusterError(f"a message for turn {turn + 1} of {len(self)}")
        if "streams" in message.arrays:
            message.arrays["streams"] = self._arriving(message.arrays["streams"])
        return self.crossing(self._by_turn[turn].process(message))

    def crossing(self, message: Message) -> Message:
        """A message as it crosses."""
        if "streams" in message.arrays:
            message.arrays["streams"] = as_boundary(message.arrays["streams"], self._boundary)
        return message

    def announce(self, tokens: Sequence[int]) -> None:
        for stage in self._by_turn:
            stage.runner.announce(tokens)

    def forget(self) -> None:
        """All sequences."""
        for stage in self._by_turn:
            stage.forget()

    def park(self) -> None:
        self._runners.park()

    def stats(self) -> dict[str, Any]:
        """In a few numbers.  Waits for nobody."""
        found = self.first.stats()
        for stage in self._by_turn[1:]:
            own = stage.stats()
            found |= {name: found[name] + own[name] for name in ("layers_done", "busy_seconds")}
        return found


def states_of(
    part: Checkpoint, backend: Backend, options: EngineOptions, context: int, plan: Plan
) -> list[StatePool]:
    """Memory for the sequences of each stretch of layers."""
    stretches = part.stretches
    if len(stretches) > 1 and isinstance(backend, DeviceBackend):
        raise OptionError(
            f"layers are {said_layers(stretches)}, but {backend.name} takes one stretch: "
            "layers take turns on processors"
        )
    return [
        open_states(backend, state_layout(part.slice(stretch), options, context), plan)
        for stretch in stretches
    ]

"""The memory of sequences on all stages, for the head: numbers, and who has forgotten them."""

from collections.abc import Mapping
from itertools import count

from penstock.backend.state import RemoteStates, Rows, StateLayout
from penstock.cluster.pipeline import Epoch, Pipeline
from penstock.errors import ClusterError


class ClusterStates(RemoteStates):
    """`layout` is that of the whole model: what is saved of a session is the same, however many stages there are."""

    def __init__(self, layout: StateLayout, pipeline: Pipeline):
        self.layout, self._pipeline = layout, pipeline
        self._numbers = count()
        self._made: dict[int, Epoch] = {}  # in which group a sequence was begun

    def allocate(self) -> int:
        return next(self._numbers)  # stages hear of it when there is something to remember

    def free(self, slot: int) -> None:
        epoch = self._made.pop(slot, None)
        if epoch is not None and epoch is self._pipeline.latest:
            self._pipeline.order(epoch, "free", slot)

    def lost(self, slot: int) -> bool:
        epoch = self._made.get(slot)
        return epoch is None or epoch is not self._pipeline.latest

    def reset(self, slot: int) -> None:
        epoch = self._pipeline.current()
        self._pipeline.order(epoch, "reset", slot)
        self._made[slot] = epoch

    def lose(self, slot: int) -> None:
        self._made.pop(slot, None)

    def copy(self, source: int, target: int, position: int) -> None:
        if not self.lost(source):
            epoch = self._made[source]
            self._pipeline.order(epoch, "copy", source, target, position)
            self._made[target] = epoch

    def commit(self, slot: int, position: int) -> None:
        if not self.lost(slot):
            self._pipeline.order(self._made[slot], "commit", slot, position)

    def discard(self, slot: int) -> None:
        if not self.lost(slot):
            self._pipeline.order(self._made[slot], "discard", slot)

    # ── rows, which are everywhere ────────────────────────────────────────────────────────────────────────

    def tensors(self, slot: int, position: int, floor: int) -> dict[str, Rows]:
        if self.lost(slot):
            raise ClusterError(
                "what the session remembered was lost with a stage; feeding it more brings it back"
            )
        found = self._pipeline.ask("tensors", slot, position, floor).arrays
        return {series.name: found[series.name] for series in self.layout.series}

    def restore(self, slot: int, position: int, floor: int, tensors: Mapping[str, Rows]) -> None:
        self.reset(slot)
        self._pipeline.ask("restore", slot, position, floor, arrays=dict(tensors))

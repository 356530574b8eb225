"""The other machines, as an engine sees them: its own layers, the memory of sequences, and a runner."""

from collections.abc import Callable
from typing import Any

from penstock.backend.base import Backend, DeviceBackend
from penstock.backend.state import StateLayout
from penstock.cluster.agreement import Terms
from penstock.cluster.head import Head
from penstock.cluster.measure import measure_layer
from penstock.cluster.pipeline import Pipeline
from penstock.cluster.runner import ClusterRunner
from penstock.cluster.stage import Stage
from penstock.cluster.states import ClusterStates
from penstock.engine.options import EngineOptions
from penstock.engine.planning import state_layout
from penstock.engine.runner import LocalRunner
from penstock.errors import OptionError
from penstock.storage.plan import Plan
from penstock.weights.checkpoint import Checkpoint


class Machines:
    """Made before the engine's plan, and opened with what follows from it."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions):
        self._checkpoint, self._options = checkpoint, options
        self.head = Head(checkpoint, options)
        self._pipeline = Pipeline(self.head, options.boundary)
        self.likely_part = checkpoint.slice(self.head.tiling.head)

    def open(self, backend: Backend, context: int, chunk: int) -> ClusterStates:
        """Begins to take workers in.  The memory of sequences is that of all stages."""
        check_device(backend)
        self._backend, o = backend, self._options
        if o.layers == "auto":
            self.head.layer_seconds = measure_layer(self.likely_part, backend)
        self._states = ClusterStates(state_layout(self._checkpoint, o, context), self._pipeline)
        self.head.start(
            Terms(
                context=context,
                max_rewind=o.max_rewind,
                kv_dtype=o.kv_dtype,
                simulate_low_precision=o.simulate_low_precision,
                draft=self._checkpoint.has_mtp,
                chunk=chunk,
                sessions=o.sessions,
                boundary=o.boundary,
                timeout=float(o.cluster_timeout),
            )
        )
        return self._states

    def own_part(self) -> Checkpoint:
        """The layers of this process.  Waits until all workers are here."""
        return self.head.own_part()

    def runner(
        self, part: Checkpoint, layout: StateLayout, plan: Plan, tell: Callable[[int, int], None]
    ) -> ClusterRunner:
        """Loads this process's layers, and waits for the others' to be loaded."""
        pipeline = self._pipeline
        if pipeline.stage is None:
            states = self._backend.states(layout)
            pipeline.stage = Stage(0, self._backend, states, lambda: self._local(part, plan, tell))
        else:
            pipeline.stage.open_with(lambda: self._local(part, plan, tell))
        runner = ClusterRunner(pipeline, self._states)
        self.head.wait(tell)
        return runner

    def _local(self, part: Checkpoint, plan: Plan, tell: Callable[[int, int], None]) -> LocalRunner:
        assert self._pipeline.stage is not None
        name = part_name(self._checkpoint, part)
        return LocalRunner(
            part, self._backend, self._pipeline.stage.states, plan, self._options, lambda: name, tell
        )

    def stats(self) -> dict[str, Any]:
        """Who is here, and what they do."""
        stage = self._pipeline.stage
        own: dict[str, Any] = {"stage": 0, "name": "head"}
        if stage is not None:
            layers = self.head.tiling.head
            own |= {"layers": [layers.start, layers.stop], **stage.stats()}
        up = self._pipeline.latest is not None
        return {
            "stages": self.head.stages,
            "up": up,
            "epochs": self.head.epochs,
            "boundary": self._options.boundary,
            "waiting_for": "" if up else self.head.why(),
            "members": [own, *self.head.stats()],
        }

    def close(self) -> None:
        self.head.close()


def part_name(whole: Checkpoint, part: Checkpoint) -> str:
    """Under which what is used of these layers is remembered."""
    return f"{whole.fingerprint()}-{part.layers.start}-{part.layers.stop}"


def check_device(backend: Backend) -> None:
    if isinstance(backend, DeviceBackend):
        raise OptionError(
            f"device is {backend.name!r}: stages of a cluster run on the CPU in this version; device cpu does that"
        )

"""The other machines, as an engine sees them: its own layers, the memory of sequences, and a runner."""

from collections.abc import Callable
from typing import Any

from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend
from penstock.backend.state import StateLayout, StatePool
from penstock.cluster.agreement import Terms
from penstock.cluster.head import Head
from penstock.cluster.measure import measure_layer, memory_for_layers
from penstock.cluster.pipeline import Pipeline
from penstock.cluster.runner import ClusterRunner
from penstock.cluster.shared_experts import SharedExperts
from penstock.cluster.stage import Stage
from penstock.cluster.states import ClusterStates
from penstock.engine.options import EngineOptions
from penstock.engine.planning import open_states, state_layout
from penstock.engine.runner import LocalRunner, Runner
from penstock.errors import OptionError
from penstock.storage.plan import Plan
from penstock.storage.store import ExpertStore
from penstock.weights.checkpoint import Checkpoint


class Machines:
    """Made before the engine's plan, and opened with what follows from it."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions):
        self._checkpoint, self._options = checkpoint, options
        self.head = Head(checkpoint, options)
        self._pipeline = Pipeline(self.head, options.boundary)
        self.likely_part = checkpoint.slice(self.head.tiling.head)

    def without_draft(self) -> Checkpoint:
        """No stage is to have the draft block.  The likely part of this process, then."""
        self._checkpoint = self.head.checkpoint = self._checkpoint.without_draft()
        self.likely_part = self._checkpoint.slice(self.head.tiling.head)
        return self.likely_part

    def open(self, backend: Backend, context: int, chunk: int) -> StatePool:
        """Begins to take workers in.  The memory of sequences is that of all stages."""
        self._backend, self._chunk, o = backend, chunk, self._options
        layout = state_layout(self._checkpoint, o, context)
        if self.head.stages == 1:
            check_shares_experts(backend)
            self._states: StatePool = backend.states(layout)
        else:
            self._states = ClusterStates(layout, self._pipeline)
            if o.layers == "auto":
                self.head.memory = memory_for_layers(o, backend)
                self.head.layer_seconds = measure_layer(self.likely_part, backend)
        self.head.start(
            Terms(
                context=context,
                max_rewind=o.max_rewind,
                kv_dtype=o.kv_dtype,
                simulate_low_precision=o.simulate_low_precision,
                exact=o.exact,
                draft=self._checkpoint.has_draft,
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
    ) -> Runner:
        """Loads this process's layers, and waits for the others' to be loaded."""
        if not isinstance(self._states, ClusterStates):
            return self._local(part, self._states, plan, tell)
        pipeline = self._pipeline
        if pipeline.stage is None:
            states = open_states(self._backend, layout, plan)
            pipeline.stage = Stage(0, self._backend, states, lambda: self._local(part, states, plan, tell))
        else:
            kept = pipeline.stage.states
            pipeline.stage.open_with(lambda: self._local(part, kept, plan, tell))
        runner = ClusterRunner(pipeline, self._states)
        self.head.wait(tell)
        return runner

    @property
    def chunk(self) -> int:
        """Rows of a step that all stages take."""
        return self.head.chunk or self._chunk  # nobody else has any

    def _local(
        self, part: Checkpoint, states: StatePool, plan: Plan, tell: Callable[[int, int], None]
    ) -> LocalRunner:
        whole = self.head.stages == 1
        name = self._checkpoint.fingerprint() if whole else part_name(self._checkpoint, part)
        shared = self._shared if whole else None
        return LocalRunner(
            part, self._backend, states, plan, self._options, lambda: name, tell, shared=shared
        )

    def _shared(self, own: ExpertStore) -> ExpertStore:
        """Experts that workers compute, if any are there."""
        helpers = self.head.helpers
        assert helpers is not None
        return SharedExperts(own, self._backend, self._checkpoint.config.experts, lambda: helpers.ready)

    def stats(self) -> dict[str, Any]:
        """Who is here, and what they do."""
        stage = self._pipeline.stage
        if self.head.stages == 1:
            members = [{"stage": 0, "name": "head"}, *self.head.stats()]
            return {"stages": 1, "up": True, "members": members}
        own: dict[str, Any] = {"stage": 0, "name": "head"}
        if stage is not None:
            layers = self.head.tiling.head
            own |= {"layers": [layers.start, layers.stop], **stage.stats()}
        epoch = self._pipeline.latest
        if epoch is not None:
            own["sent_bytes"] = epoch.group.sent_bytes
        up = epoch is not None
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


def check_shares_experts(backend: Backend) -> None:
    if isinstance(backend, DeviceBackend):
        raise OptionError(
            f"device is {backend.name!r}: a head with expert workers (stages 1) runs on the CPU; device cpu does that"
        )

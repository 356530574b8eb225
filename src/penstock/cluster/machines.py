"""The other machines, as an engine sees them: its own layers, the memory of sequences, and a runner."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend, HostBackend
from penstock.backend.state import StateLayout, StateMemory, StatePool
from penstock.cluster.agreement import Terms
from penstock.cluster.head import Head
from penstock.cluster.measure import measure_layer, memory_for_layers
from penstock.cluster.pipeline import Pipeline
from penstock.cluster.runner import ClusterRunner
from penstock.cluster.shared_experts import SharedExperts
from penstock.cluster.split import said_layers
from penstock.cluster.stages import Stages, states_of
from penstock.cluster.states import ClusterStates
from penstock.engine.options import EngineOptions
from penstock.engine.planning import state_layout
from penstock.engine.runner import LocalRunner, Runner, open_runners
from penstock.errors import OptionError
from penstock.storage.plan import Plan
from penstock.storage.store import ExpertStore, TableStore
from penstock.weights.checkpoint import Checkpoint


class Machines:
    """Made before the engine's plan, and opened with what follows from it."""

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions):
        self._checkpoint, self._options = checkpoint, options
        self.head = Head(checkpoint, options)
        self._pipeline = Pipeline(self.head)
        self.likely_part = checkpoint.slice(*self.head.tiling.head)

    def without_draft(self) -> Checkpoint:
        """No stage is to have the draft block.  The likely part of this process, then."""
        self._checkpoint = self.head.checkpoint = self._checkpoint.without_draft()
        self.likely_part = self._checkpoint.slice(*self.head.tiling.head)
        return self.likely_part

    def open(self, backend: Backend, context: int, chunk: int) -> StateMemory:
        """Begins to take workers in.  The memory of sequences is that of all stages."""
        self._backend, self._chunk, o = backend, chunk, self._options
        layout = state_layout(self._checkpoint, o, context)
        if self.head.stages == 1:
            check_shares_experts(backend)
            self._states: StatePool | ClusterStates = backend.states(layout)
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
            (alone,) = self._local(part, [self._states], plan, tell)
            return alone
        pipeline, o = self._pipeline, self._options
        if pipeline.stages is None:
            states = states_of(part, self._backend, o, layout.context, plan)
            pipeline.stages = Stages(
                0, self._backend, states, lambda: self._local(part, states, plan, tell), o.boundary
            )
        else:
            kept = pipeline.stages.states
            pipeline.stages.open_with(lambda: self._local(part, kept, plan, tell))
        runner = ClusterRunner(pipeline, self._states)
        self.head.wait(tell)
        return runner

    @property
    def chunk(self) -> int:
        """Rows of a step that all stages take."""
        return self.head.chunk or self._chunk  # nobody else has any

    def _local(
        self, part: Checkpoint, states: Sequence[StatePool], plan: Plan, tell: Callable[[int, int], None]
    ) -> list[LocalRunner]:
        whole = self.head.stages == 1
        name = self._checkpoint.fingerprint() if whole else part_name(self._checkpoint, part)
        shared = self._shared if whole else None
        return open_runners(
            part, self._backend, states, plan, self._options, lambda: name, tell, shared=shared
        )

    def _shared(self, own: ExpertStore) -> ExpertStore:
        """Experts that workers compute, if any are there."""
        helpers = self.head.helpers
        assert helpers is not None
        assert isinstance(self._backend, HostBackend)  # `check_shares_experts`
        assert isinstance(own, TableStore)
        return SharedExperts(own, self._backend, self._checkpoint.config.experts, lambda: helpers.ready)

    def stats(self) -> dict[str, Any]:
        """Who is here, and what they do."""
        stages = self._pipeline.stages
        if self.head.stages == 1:
            members = [{"stage": 0, "name": "head"}, *self.head.stats()]
            return {"stages": 1, "up": True, "members": members}
        own: dict[str, Any] = {"stage": 0, "name": "head"}
        if stages is not None:
            own |= {"layers": said_layers(self.head.tiling.head), **stages.stats()}
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
    return "-".join([whole.fingerprint(), *(f"{each.start}-{each.stop}" for each in part.stretches)])


def check_shares_experts(backend: Backend) -> None:
    if isinstance(backend, DeviceBackend):
        raise OptionError(
            f"device is {backend.name!r}: a head with expert workers (stages 1) runs on the CPU; device cpu does that"
        )

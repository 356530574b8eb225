"""An engine's memory: what goes where, weights that come and leave, and sessions that grow at their cost."""

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import penstock.cluster
from penstock.backend.device import DeviceBackend
from penstock.backend.state import StateMemory, StatePool
from penstock.engine.options import EngineOptions
from penstock.engine.planning import (
    choose_backend,
    make_engine_plan,
    open_states,
    plan_engine,
    state_layout,
)
from penstock.engine.runner import Loading, Runner, open_runners
from penstock.errors import BudgetError, OptionError
from penstock.machine.pages import give_back_freed
from penstock.storage.plan import Plan
from penstock.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from penstock.cluster.machines import Machines


class Loader:
    """Plans a model's memory when it is made, and brings the weights when they are needed.  Whoever loads, unloads
    or uses the runner holds `lock`; looking takes none.

    unloading  is called before the weights leave memory
    """

    unloading: Callable[[], None] | None = None

    def __init__(self, checkpoint: Checkpoint, options: EngineOptions):
        self.checkpoint, self.options = checkpoint, options
        self.part = checkpoint  # what this process has of it
        self.machines: penstock.cluster.machines.Machines | None = None  # the others, if there are any
        if options.cluster is not None:
            penstock.cluster.require()
            from penstock.cluster.machines import Machines

            self.machines = Machines(checkpoint, options)
            self.part = self.machines.likely_part
        self.backend = choose_backend(self.part, options)
        if self.machines is None:
            found = plan_engine(checkpoint, options, self.backend, options.context)
            self.checkpoint, self.plan, self.context = found
            self.part = self.checkpoint
        else:
            self.plan, self.context = self._plan_with(self.machines)
        # Where a card shares experts with the host, those of a wrong guess would be fetched for nothing.
        self.drafts = options.draft != "off" and not (options.draft == "auto" and self.plan.tiers is not None)
        self.layout = state_layout(self.part, options, self.context)
        if self.machines is None:
            self.states: StateMemory = open_states(self.backend, self.layout, self.plan)
        else:
            self.states = self.machines.open(self.backend, self.context, self.plan.chunk)
        # By slot of a session that somebody holds: the most tokens that it ever had.
        self.written: dict[int, int] = {}
        self.lock = threading.Lock()
        self.loading: Loading | None = None  # while weights are read
        self.runner: Runner | None = None  # while they are in memory
        self._crowded = False  # sessions need more than any plan has
        self._closed = False

    def _plan_with(self, machines: "Machines") -> tuple[Plan, int]:
        """A draft block that nobody asked for is left out where this machine's experts stream, or have a device."""
        plan, context = self._make_plan()
        streams = plan.experts_held < plan.experts_total or isinstance(self.backend, DeviceBackend)
        if self.options.draft != "auto" or not self.checkpoint.has_draft or not streams:
            return plan, context
        self.checkpoint, self.part = self.checkpoint.without_draft(), machines.without_draft()
        return self._make_plan()

    def _make_plan(self, chunk: int | None = None) -> tuple[Plan, int]:
        return make_engine_plan(self.part, self.options, self.backend, self.options.context, chunk=chunk)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the model and of every option that changes what a session's state contains."""
        rounding = "-simulated" if self.options.simulate_low_precision else ""
        if self.machines is not None and self.options.stages > 1 and self.options.boundary != "f32":
            rounding += f"-{self.options.boundary}"
        return self.checkpoint.fingerprint() + rounding

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────

    def load(self, progress: Callable[[int, int], None] | None = None, plan: Plan | None = None) -> Runner:
        """Reads the weights to memory, if they are not there.  plan: what goes where; None: as is best now"""
        if self._closed:
            raise OptionError("the engine is closed")
        if self.runner is None:
            self.loading = Loading(progress)
            try:
                if self.machines is not None:
                    return self._load_stage(self.machines, self.loading, plan)
                # How much memory there is may have changed; how long sessions can get has not.
                self.plan = plan or self._make_plan()[0]
                assert isinstance(self.states, StatePool)
                (self.runner,) = open_runners(
                    self.checkpoint,
                    self.backend,
                    [self.states],
                    self.plan,
                    self.options,
                    lambda: self.fingerprint,
                    self.loading,
                )
            finally:
                self.loading = None
        return self.runner

    def _load_stage(self, machines: "Machines", loading: Loading, plan: Plan | None) -> Runner:
        """This process's own layers; then it waits for the other machines."""
        self.part = machines.own_part()
        self.layout = state_layout(self.part, self.options, self.context)
        self.__dict__.pop("_state_range", None)
        self.plan = plan or self._make_plan(self.plan.chunk)[0]
        self.runner = machines.runner(self.part, self.layout, self.plan, loading)
        self.plan = replace(self.plan, chunk=min(self.plan.chunk, machines.chunk))
        return self.runner

    def unload(self) -> None:
        """Gives the memory of the weights back."""
        if self.runner is not None:
            if self.unloading is not None:
                self.unloading()
            self.runner.settle()
            self.runner.close()
            self.runner = None
            gc.collect()
            give_back_freed()

    def park(self) -> None:
        """As `unload`, for longer."""
        if self.options.trace is not None:
            raise OptionError("an engine that records a trace cannot be parked: the trace would end there")
        with self.lock:
            if self.runner is not None:
                self.unload()
                if isinstance(self.backend, DeviceBackend):
                    self.backend.release()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            if self.runner is not None:
                self.runner.close()
            if self.machines is not None:
                self.machines.close()

    def settle(self, slot: int) -> None:
        """Sees to it that all rows of a sequence's state are there, to be copied or saved."""
        with self.lock:
            if self.runner is not None and not self._closed:
                self.runner.settle(slot)

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────

    def state_bytes(self, position: int) -> int:
        """Memory of a session that has read so many tokens, rounded up: exact would be to look at every layer."""
        empty, full = self._state_range
        return empty + -(-(full - empty) * position // self.context)

    @cached_property
    def _state_range(self) -> tuple[int, int]:
        """Bytes of an empty session and of a full one."""
        if isinstance(self.backend, DeviceBackend):
            device, layout = self.backend, self.layout
            return device.state_bytes(layout, 0), device.state_bytes(layout, self.context)
        return self.layout.live_bytes(0), self.layout.live_bytes(self.context)

    def make_room(self, lengths: dict[int, int]) -> None:
        """Sessions are about to have so many tokens, by slot: where that is more than the plan has for them, experts
        give way."""
        if self.plan.budget is not None:
            written = {**self.written, **{slot: max(self.written[slot], lengths[slot]) for slot in lengths}}
            needed = sum(map(self.state_bytes, written.values()))
            if needed > (self.plan.most_state or 0):
                self._plan_anew(needed)
            self.load().storage.lend(needed - self.plan.state)

    def _plan_anew(self, needed: int) -> None:
        """Sessions need more than experts can give: weights that had a place have to come and go instead.  That reads
        everything again, so there is room for twice as much then, if there can be."""
        if self.options.context is not None or self.options.trace is not None or self._crowded:
            return
        same = replace(self.options, memory=self.plan.budget)
        for state in (2 * needed, needed):
            with suppress(BudgetError):
                plan, _ = make_engine_plan(
                    self.part, same, self.backend, None, state=state, chunk=self.plan.chunk
                )
                self.unload()
                self.load(plan=plan)
                return
        self._crowded = True

"""The engine: a loaded model, the sessions on it, and generation.  Speaks token ids."""

import gc
import operator
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

import penstock.cluster
from penstock.backend.base import DeviceBackend
from penstock.backend.state import Step as ModelStep
from penstock.engine.ahead import Ahead
from penstock.engine.opening import open_model
from penstock.engine.options import EngineOptions
from penstock.engine.planning import choose_backend, make_engine_plan, state_layout
from penstock.engine.progress import PrefillProgress, PrefillWatch
from penstock.engine.runner import Loading, LocalRunner, Runner
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.steps import Generation, Step
from penstock.errors import BudgetError, OptionError, PenstockError, TokenError
from penstock.kv.snapshot import Snapshot, load_snapshot
from penstock.kv.state import SequenceState
from penstock.machine.pages import give_back_freed
from penstock.option import takes
from penstock.storage.heat import ExpertMap
from penstock.storage.plan import Plan
from penstock.storage.storage import Storage
from penstock.tokenizer import Tokenizer, tokenizer_from_gguf, tokenizer_from_json
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig

if TYPE_CHECKING:
    from penstock.cluster.machines import Machines

Logits = NDArray[np.float32]


class Engine:
    """Opens a model and runs sessions on it.  `path`: a .gguf file, the first of its splits, a checkpoint folder,
    `hf:REPO[:FILE]` on Hugging Face, which is downloaded if it is not here, or the name of a model that is here.

    The other keyword arguments are the fields of `EngineOptions`.  `progress` is told bytes read and in all as
    weights are read; with `load=False` they are read by the first step.  Methods may be called from several threads;
    steps run one after another.

    >>> engine = penstock.Engine("model.gguf", kv_dtype="f16")
    >>> for step in engine.generate(engine.tokenizer.encode("Once upon"), 4, penstock.Sampling(temperature=0)):
    ...     print(step.text, end="")
     a time, a

    `engine.context` is the most tokens that a session holds, `engine.config` the model's hyper-parameters,
    `engine.options` what was chosen.
    """

    @takes(EngineOptions)
    def __init__(
        self,
        path: str | Path,
        *,
        progress: Callable[[int, int], None] | None = None,
        load: bool = True,
        **options: Any,
    ):
        self.options = chosen = EngineOptions.make(**options)
        self.checkpoint: Checkpoint = open_model(path, chosen)
        self.config: ModelConfig = self.checkpoint.config
        if chosen.context is not None and chosen.context > self.config.context_length:
            raise OptionError(
                f"context is {chosen.context:,}, the model's limit is {self.config.context_length:,}"
            )
        self.part = self.checkpoint  # what this process has of it
        self.machines: penstock.cluster.machines.Machines | None = None  # the others, if there are any
        if chosen.cluster is not None and chosen.stages > 1:
            penstock.cluster.require()
            from penstock.cluster.machines import Machines

            self.machines = Machines(self.checkpoint, chosen)
            self.part = self.machines.likely_part
        self.backend = choose_backend(self.part, chosen)
        self._plan, self.context = self._make_plan()
        self.layout = state_layout(self.part, chosen, self.context)
        if self.machines is None:
            self.states = self.backend.states(self.layout)
        else:
            self.states = self.machines.open(self.backend, self.context, self._plan.chunk)
        self.written: dict[
            int, int
        ] = {}  # by slot of a session that somebody holds: the most tokens that it ever had
        if isinstance(self.backend, DeviceBackend) and self._plan.most_state is not None:
            self.backend.limit(self.states, self._plan.most_state)
        self._runner: Runner | None = None
        self._ahead = Ahead(self._discard)
        self._crowded = False  # sessions need more than any plan has
        self.loading: Loading | None = None
        self._lock = threading.Lock()
        self._closed = False
        if load:
            self.load(progress)

    def _make_plan(self, chunk: int | None = None) -> tuple[Plan, int]:
        return make_engine_plan(self.part, self.options, self.backend, self.options.context, chunk=chunk)

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def plan(self) -> Plan:
        """What goes where in memory."""
        return self._plan

    @property
    def parked(self) -> bool:
        """Whether the weights are not in memory.  The next step brings them back."""
        return self._runner is None

    @property
    def runner(self) -> Runner:
        """What runs steps.  Brings the weights back if they are not in memory."""
        runner = self._runner
        if runner is None:
            with self._lock:
                runner = self._load()
        return runner

    @property
    def storage(self) -> Storage:
        """Where the weights are."""
        return self.runner.storage

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads the weights to memory, if they are not there.  `progress` is told bytes read, and bytes in all;
        meanwhile `loading` says the same to other threads."""
        with self._lock:
            self._load(progress)

    def park(self) -> None:
        """Gives the memory of the weights back, after the step that is running.  Sessions stay as they are.

        >>> engine.park()
        >>> engine.parked
        True
        """
        if self.options.trace is not None:
            raise OptionError("an engine that records a trace cannot be parked: the trace would end there")
        with self._lock:
            if self._runner is not None:
                self._unload()
                if isinstance(self.backend, DeviceBackend):
                    self.backend.release()

    def _load(self, progress: Callable[[int, int], None] | None = None, plan: Plan | None = None) -> Runner:
        """With the lock held.  plan: what goes where; None: as is best now"""
        if self._closed:
            raise OptionError("the engine is closed")
        if self._runner is None:
            self.loading = Loading(progress)
            try:
                if self.machines is not None:
                    return self._load_stage(self.machines, plan)
                # How much memory there is may have changed; how long sessions can get has not.
                self._plan = plan or self._make_plan()[0]
                self._runner = LocalRunner(
                    self.checkpoint,
                    self.backend,
                    self.states,
                    self._plan,
                    self.options,
                    lambda: self.fingerprint,
                    self.loading,
                )
            finally:
                self.loading = None
        return self._runner

    def _load_stage(self, machines: "Machines", plan: Plan | None) -> Runner:
        """This process's own layers; then it waits for the other machines."""
        assert self.loading is not None
        self.part = machines.own_part()
        self.layout = state_layout(self.part, self.options, self.context)
        self.__dict__.pop("_state_range", None)
        self._plan = plan or self._make_plan(self._plan.chunk)[0]
        self._runner = machines.runner(self.part, self.layout, self._plan, self.loading)
        return self._runner

    def _unload(self) -> None:
        """With the lock held."""
        self._ahead.drop()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
            gc.collect()
            give_back_freed()

    def stats(self) -> dict[str, Any]:
        """What the weights' storage has done since they were loaded: hits, misses, bytes, waits.

        >>> engine.load()
        >>> engine.stats()["mode"]
        'mmap'
        """
        runner = self._runner
        found: dict[str, Any] = {"mode": "parked"} if runner is None else runner.storage.stats()
        if isinstance(self.backend, DeviceBackend):
            found["device"] = self.backend.stats()
        if self.machines is not None:
            found["cluster"] = self.machines.stats()
        return found

    def expert_map(self) -> ExpertMap | None:
        """Which experts are in memory, and how much each was used lately; None while no weights are in memory.
        Does not wait for a step."""
        runner = self._runner
        return None if runner is None else runner.storage.experts.map()

    def close(self) -> None:
        """Ends a trace and the threads that read.  The engine cannot be used afterwards."""
        with self._lock:
            self._closed = True
            if self._runner is not None:
                self._runner.close()
            if self.machines is not None:
                self.machines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── sessions ──────────────────────────────────────────────────────────────────────────────────────────

    def session(self) -> Session:
        """A new, empty session.

        >>> engine.session().position
        0
        """
        return Session(self, SequenceState(self.states))

    def load_session(self, path: str | Path) -> Session:
        """The session that `session.save(path)` wrote.

        >>> logits = session.feed([0, 17, 4])
        >>> session.save("three.session")
        >>> engine.load_session("three.session").tokens
        [0, 17, 4]
        """
        return self.restored(load_snapshot(Path(path), self.states, self.fingerprint))

    def restored(self, snapshot: Snapshot) -> Session:
        """The session that a snapshot was made of."""
        session = Session(self, snapshot.state, snapshot.tokens)
        session.last_logits = snapshot.logits
        return session

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

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the model and of every option that changes what a session's state contains."""
        rounding = "-simulated" if self.options.simulate_low_precision else ""
        if self.machines is not None and self.options.boundary != "f32":
            rounding += f"-{self.options.boundary}"
        return self.checkpoint.fingerprint() + rounding

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────

    def feed(
        self,
        work: Sequence[tuple[Session, Sequence[int]]],
        logits: str = "last",
        progress: Callable[[float], None] | None = None,
    ) -> list[Logits | None]:
        """Processes tokens of several sessions together.  One result per session: "last" → [vocab],
        "all" → [len(ids), vocab], "none" → None.

        Nothing happens if any id or length is wrong.  If a step fails, each session stands where its last
        completed step left it.  `progress` is told after every layer how many tokens are read, of all together; a
        step is read in part while it runs.  What it raises ends the feeding.

        >>> first, second = engine.session(), engine.session()
        >>> found = engine.feed([(first, [0, 17]), (second, [0, 17, 4])], logits="all")
        >>> [rows.shape for rows in found]
        [(2, 4096), (3, 4096)]
        """
        if logits not in ("last", "all", "none"):
            raise OptionError(f"logits is {logits!r}, expected 'last', 'all' or 'none'")
        return self._feed(work, logits, progress)

    def _feed(
        self,
        work: Sequence[tuple[Session, Sequence[int]]],
        logits: str,
        progress: Callable[[float], None] | None = None,
    ) -> list[Logits | None]:
        """As `feed`; "kept" → None, and each session has its last logits where they lie."""
        jobs = [_Job(session, self._checked(ids)) for session, ids in work]
        if len({id(job.session) for job in jobs}) != len(jobs):
            raise OptionError("a session appears twice in one batch")
        for job in jobs:
            if job.session.engine is not self:
                raise OptionError("a session belongs to another engine")
        with self._lock:
            for job in jobs:
                job.session.state.check_room(len(job.ids))
            self._feed_jobs(jobs, logits, progress)
            return [job.result(logits) for job in jobs]

    def _checked(self, ids: Sequence[int]) -> list[int]:
        try:
            tokens = [operator.index(token) for token in ids]
        except TypeError as error:
            raise TokenError(f"token ids must be whole numbers: {error}") from None
        if not tokens:
            raise TokenError("there are no tokens to feed")
        for token in tokens:
            if not 0 <= token < self.config.vocab_size:
                raise TokenError(f"token id {token} is outside the vocabulary of {self.config.vocab_size:,}")
        return tokens

    def advance(
        self,
        work: Sequence[tuple[Session, Sequence[int], int]],
        progress: Callable[[float], None] | None = None,
    ) -> list[Logits | None]:
        """One step over all of these tokens, at most `plan.chunk`: (session, ids, how many of their last rows have
        logits) → [rows, vocab], or None for no rows.  For schedulers; `feed` takes any number of tokens.  progress:
        told the share of the step that is done."""
        return self.finish(self.begin(work, progress))

    @property
    def depth(self) -> int:
        """Steps that can be under way at the same time."""
        return 1 if self._runner is None else self._runner.depth

    def begin(
        self,
        work: Sequence[tuple[Session, Sequence[int], int]],
        progress: Callable[[float], None] | None = None,
    ) -> "Begun":
        """As `advance`, which is `finish(begin(…))`: up to `depth` steps may be under way, over different sessions.
        Only a step without any logits may be followed by another of the same sessions before it is finished."""
        checked = [(session, self._checked(ids), rows) for session, ids, rows in work]
        if sum(len(ids) for _, ids, _ in checked) > self.plan.chunk:
            raise OptionError(f"a step takes {self.plan.chunk:,} tokens at most")
        with self._lock:
            for session, ids, _ in checked:
                session.state.check_room(len(ids))
            return self._begin(checked, progress)

    def finish(self, begun: "Begun") -> list[Logits | None]:
        """What `advance` gives, when the step is done."""
        try:
            found = begun.parts()
            if not begun.committed:
                begun.runner.commit(begun.step)
        except BaseException:
            self._fail(begun)
            raise
        for (session, ids, _), part in zip(begun.work, found, strict=True):
            if not begun.committed:
                session._advance(ids)
            session.last_logits = None if part is None else part[-1].copy()
        return found

    def _fail(self, begun: "Begun") -> None:
        """The sessions are as they were before the step, or have to be fed again to be so."""
        if not begun.committed:
            begun.runner.discard(begun.step)
            return
        for session, position in zip((session for session, _, _ in begun.work), begun.positions, strict=True):
            self.states.lose(session.state.slot)
            session._retreat(position)

    def _begin(
        self, work: Sequence[tuple[Session, list[int], int]], progress: Callable[[float], None] | None
    ) -> "Begun":
        """One ragged step: (session, ids, how many of their last rows have logits)"""
        self._load()
        for session, _, _ in work:
            if self.states.lost(session.state.slot):
                self._feed_again(session)
        step = ModelStep.of(
            [(session.state.slot, session.position, ids, rows) for session, ids, rows in work]
        )
        positions = [session.position for session, _, _ in work]
        ahead = self._ahead.take(work)
        if ahead is not None:
            return Begun(work, positions, self._load(), step, lambda: list[Logits | None](ahead), False)
        self._make_room({session.state.slot: session.position + len(ids) for session, ids, _ in work})
        runner = self._load()
        try:
            pending = runner.begin(step, progress)
        except BaseException:
            runner.discard(step)
            raise
        committed = runner.depth > 1 and len(step.logits) == 0
        begun = Begun(work, positions, runner, step, lambda: _parts(work, pending()), committed)
        if begun.committed:  # so that the sessions' next tokens can follow at once
            runner.commit(step)
            for session, ids, _ in work:
                session._advance(ids)
        return begun

    def _feed_again(self, session: Session) -> None:
        """What a session remembered is gone: it reads its tokens once more."""
        tokens = session.tokens
        self.states.reset(session.state.slot)
        session._retreat(0)
        try:
            if tokens:
                self._feed_jobs([_Job(session, tokens)], "none", None)
        except BaseException:
            self.states.lose(session.state.slot)
            session._resume(tokens)
            raise

    def _discard(self, step: ModelStep, slots: Collection[int]) -> None:
        """A step counts for nothing in these of its slots, as far as somebody holds them."""
        if self._runner is not None:
            self._runner.discard(replace(step, slots=tuple(slot for slot in slots if slot in self.written)))

    def run_ahead(self, generations: Sequence[Generation]) -> None:
        """Begins the step after the tokens that these are choosing, before anybody knows them, where a device can
        (`engine/ahead.py`).  Whether or not it did, `advance` comes next, with the tokens."""
        with self._lock, suppress(PenstockError):  # what is wrong with a step is said when it is needed
            work = [
                (each.session, each.sampler.choosing)
                for each in generations
                if each.session is not None and not each.is_last
            ]
            choices = [choice for _, choice in work if choice is not None]
            if not self._ahead.allowed or self._runner is None or not work or len(choices) < len(work):
                return
            if self._plan.tiers is not None:  # the host has its part in every layer: nothing is gained
                return
            source = self.backend.sampling.tokens(choices)
            if source is None:
                return
            step = ModelStep.of([(each.state.slot, each.position, [0], 1) for each, _ in work], source)
            self._make_room({each.state.slot: each.position + 1 for each, _ in work})
            self._ahead.begin(step, choices, self._load().run(step))

    def has_begun(self, sessions: Sequence[Session]) -> bool:
        """Whether the next step of these is under way already."""
        return self._ahead.has(sessions)

    def _make_room(self, lengths: dict[int, int]) -> None:
        """Sessions are about to have so many tokens, by slot: where that is more than the plan has for them, experts
        give way."""
        if self._plan.budget is not None:
            written = {**self.written, **{slot: max(self.written[slot], lengths[slot]) for slot in lengths}}
            needed = sum(map(self.state_bytes, written.values()))
            if needed > (self._plan.most_state or 0):
                self._plan_anew(needed)
            self._load().storage.lend(needed - self._plan.state)

    def _plan_anew(self, needed: int) -> None:
        """Sessions need more than experts can give: weights that had a place have to come and go instead.  That reads
        everything again, so there is room for twice as much then, if there can be."""
        if self.options.context is not None or self.options.trace is not None or self._crowded:
            return
        same = replace(self.options, memory=self._plan.budget)
        for state in (2 * needed, needed):
            with suppress(BudgetError):
                plan, _ = make_engine_plan(
                    self.part, same, self.backend, None, state=state, chunk=self._plan.chunk
                )
                self._unload()
                self._load(plan=plan)
                return
        self._crowded = True

    def _feed_jobs(self, jobs: "list[_Job]", logits: str, progress: Callable[[float], None] | None) -> None:
        """Step by step; where several can be under way, the next begins when the one before is with others."""
        under_way: deque[tuple[list[tuple[_Job, list[int]]], Begun]] = deque()
        try:
            while under_way or any(job.left for job in jobs):
                if any(job.left for job in jobs):
                    taken, begun = self._begin_jobs(jobs, logits, progress)
                    under_way.append((taken, begun))
                    if begun.committed and len(under_way) < self.depth:
                        continue
                while under_way:
                    taken, begun = under_way.popleft()
                    for (job, _), part in zip(taken, self.finish(begun), strict=True):
                        job.keep(part)
                    if begun.committed:
                        break
        except BaseException:
            for _, begun in under_way:
                with suppress(PenstockError):
                    self.finish(begun)
            raise

    def _begin_jobs(
        self, jobs: "list[_Job]", logits: str, progress: Callable[[float], None] | None
    ) -> "tuple[list[tuple[_Job, list[int]]], Begun]":
        """As many waiting tokens as a chunk holds, first sessions first."""
        room = self.plan.chunk
        taken: list[tuple[_Job, list[int]]] = []
        for job in jobs:
            ids = job.ids[job.done : job.done + room]
            if ids:
                taken.append((job, ids))
                room -= len(ids)

        def rows(job: _Job, ids: list[int]) -> int:
            return {"none": 0, "all": len(ids)}.get(logits, int(job.left == len(ids)))

        before, count = sum(job.done for job in jobs), sum(len(ids) for _, ids in taken)
        tell = None if progress is None else lambda share: progress(before + share * count)
        begun = self._begin([(job.session, ids, rows(job, ids)) for job, ids in taken], tell)
        for job, ids in taken:
            job.done += len(ids)
        waiting = next((job.ids[job.done :] for job in jobs if job.left), None)
        if waiting is not None:
            self._load().announce(waiting[: self.plan.chunk])
        return taken, begun

    def mtp_logits(self, session: Session, next_token: int) -> Logits:
        """What the draft block expects two tokens ahead: after `next_token`, which is about to follow.  [vocab]

        >>> logits = session.feed([0, 17, 4])
        >>> engine.mtp_logits(session, next_token=5).shape
        (4096,)
        """
        if not self.checkpoint.has_mtp:
            raise OptionError(
                f"{self.checkpoint.path}: the model has no MTP block (see the options mtp and draft)"
            )
        if session.position == 0:
            raise OptionError("mtp_logits needs a session with at least one token")
        (token,) = self._checked([next_token])
        with self._lock:
            self._ahead.drop()  # its logits are where these will be
            return self._load().draft_logits(session.state.slot, session.position, token)

    # ── generation ────────────────────────────────────────────────────────────────────────────────────────

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int | None = 64,
        sampling: Sampling | None = None,
        session: Session | None = None,
        progress: Callable[[PrefillProgress], None] | None = None,
    ) -> Iterator[Step]:
        """Feeds the prompt (to a new session, or on top of `session`) and yields one step per token, until the model
        ends, `max_tokens` are there or the context is full.  `progress` hears how far the prompt is read.

        >>> sampling = penstock.Sampling(seed=1, ignore_eos=True)
        >>> steps = list(engine.generate([0, 17, 4], max_tokens=8, sampling=sampling))
        >>> len(steps), steps[-1].finish_reason
        (8, 'length')
        """
        session = session or self.session()
        generation = self.generation(
            session, [*session.tokens, *prompt_ids], max_tokens, sampling or Sampling()
        )
        watch = None
        if progress is not None:
            watch = PrefillWatch(session.position + len(prompt_ids), session.position, progress)
        ids = self._checked(prompt_ids)
        while True:
            self._feed([(session, ids)], "kept", watch)
            assert session.last_logits is not None
            generation.start(session.last_logits)
            self.run_ahead([generation])
            step = generation.next(session.last_logits)
            yield step
            if step.finish_reason is not None:
                return
            ids, watch = [step.token], None

    def generation(
        self, session: Session | None, prompt: Sequence[int], max_tokens: int | None, sampling: Sampling
    ) -> Generation:
        """What turns a session's logits into tokens and text, after a prompt that it has read or will read.  The
        session may come later; what is wrong with the rest is said now."""
        tokenizer = self._text_codec(sampling)
        ends = {*self.config.eos_ids, *(tokenizer.eos_ids if tokenizer else ())}
        vocab_size = self.config.vocab_size
        ops = self.backend.sampling
        return Generation(
            session, vocab_size, self.context, prompt, max_tokens, sampling, ends, tokenizer, ops
        )

    def _text_codec(self, sampling: Sampling) -> Tokenizer | None:
        try:
            return self.tokenizer
        except TokenError:
            if sampling.stop:
                raise
            return None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer stored with the model, a `Tokenizer`."""
        path, metadata = self.checkpoint.path, self.checkpoint.metadata
        if metadata:
            if metadata.get("tokenizer.ggml.model", "none") == "none":
                raise TokenError(f"{path}: the file holds no tokenizer")
            return tokenizer_from_gguf(metadata, str(path))
        if not (path / "tokenizer.json").exists():
            raise TokenError(f"{path}: no tokenizer.json in the folder")
        return tokenizer_from_json(path / "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that is under way."""

    work: Sequence[tuple[Session, list[int], int]]
    positions: Sequence[int]  # where the sessions stood before it
    runner: Runner
    step: ModelStep
    parts: Callable[[], list[Logits | None]]  # waits for the logits of each session's rows
    committed: bool  # its tokens count already


def _parts(work: Sequence[tuple[Session, list[int], int]], logits: Logits) -> list[Logits | None]:
    """Of each session's rows."""
    ends = accumulate(rows for _, _, rows in work)
    return [logits[end - rows : end] if rows else None for (_, _, rows), end in zip(work, ends, strict=True)]


class _Job:
    """One session's tokens on their way through a `feed`."""

    def __init__(self, session: Session, ids: list[int]):
        self.session, self.ids, self.done = session, ids, 0
        self.parts: list[Logits] = []

    @property
    def left(self) -> int:
        return len(self.ids) - self.done

    def keep(self, logits: Logits | None) -> None:
        if logits is not None:
            # The next step may change what lies on a device.
            self.parts.append(np.asarray(logits) if self.left else logits)

    def result(self, logits: str) -> Logits | None:
        """What `feed` returns for this session."""
        if logits in ("none", "kept"):
            return None
        found = self.parts[-1][-1] if logits == "last" else np.concatenate(self.parts)
        return np.asarray(found)

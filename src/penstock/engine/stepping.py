"""Steps over sessions: begun, finished, and one after another until all tokens are read."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from penstock.backend.base import Logits
from penstock.backend.state import RemoteStates
from penstock.backend.state import Step as ModelStep
from penstock.engine.ahead import Ahead
from penstock.engine.jobs import Job, checked_ids, first_tokens
from penstock.engine.loader import Loader
from penstock.engine.runner import Runner
from penstock.engine.session import Session
from penstock.engine.steps import Generation
from penstock.errors import OptionError, PenstockError

Progress = Callable[[float], None]
# Given the number of a session in a step and its logits, says how many of its ids count; the others were drafts that
# are not true, and the session is as if it had never read them.
Judge = Callable[[int, Logits], int]
LOGITS_SHARE: Final = 4  # logits of a step with few rows take a quarter at most of the memory for a full one


@dataclass(frozen=True, slots=True)
class Begun:
    """A step that is under way."""

    work: Sequence[tuple[Session, list[int], int]]
    positions: Sequence[int]  # where the sessions stood before it
    runner: Runner
    step: ModelStep
    parts: Callable[[], list[Logits | None]]  # waits for the logits of each session's rows
    committed: bool  # its tokens count already


class Stepper:
    """Runs steps of one engine's sessions, one after another or, where a runner can, several at a time.

    Nothing happens if any id or length is wrong.  If a step fails, its sessions are as they were before it.
    """

    def __init__(self, loader: Loader, vocab_size: int):
        self._loader, self._states, self._vocab_size = loader, loader.states, vocab_size
        self._ahead = Ahead(self._discard)
        loader.unloading = self._ahead.drop

    @property
    def depth(self) -> int:
        """Steps that can be under way at the same time."""
        return 1 if self._loader.runner is None else self._loader.runner.depth

    @property
    def shares(self) -> int:
        """Steps that those who decode are best shared out over."""
        return 1 if self._loader.runner is None else self._loader.runner.shares

    @property
    def logit_rows(self) -> int:
        """Rows of a step that may have logits: these, and a copy of them, stay within the memory of steps."""
        row = 2 * 4 * self._vocab_size
        return max(1, self._loader.plan.work // LOGITS_SHARE // row)

    def piece(self, tokens: int) -> int:
        """How many tokens of prompts with so many together are best read in a step."""
        most, runner = self._loader.plan.chunk, self._loader.runner
        return most if runner is None else runner.piece(tokens, most)

    def advance(
        self,
        work: Sequence[tuple[Session, Sequence[int], int]],
        progress: Progress | None = None,
        judge: Judge | None = None,
    ) -> list[Logits | None]:
        """One step over all of these tokens, at most `plan.chunk`: (session, ids, how many of their last rows have
        logits) → [rows, vocab], or None for no rows.  progress: told the share of the step that is done."""
        return self.finish(self.begin(work, progress), judge)

    def begin(
        self, work: Sequence[tuple[Session, Sequence[int], int]], progress: Progress | None = None
    ) -> Begun:
        """As `advance`, which is `finish(begin(…))`: up to `depth` steps may be under way, over different sessions.
        Only a step without any logits may be followed by another of the same sessions before it is finished."""
        checked = [(session, checked_ids(ids, self._vocab_size), rows) for session, ids, rows in work]
        chunk = self._loader.plan.chunk
        if sum(len(ids) for _, ids, _ in checked) > chunk:
            raise OptionError(f"a step takes {chunk:,} tokens at most")
        with self._loader.lock:
            for session, ids, _ in checked:
                session.state.check_room(len(ids))
            return self._begin(checked, progress)

    def _begin(self, work: Sequence[tuple[Session, list[int], int]], progress: Progress | None) -> Begun:
        """One ragged step, with the lock held."""
        self._loader.load()
        for session, _, _ in work:
            if self._states.lost(session.state.slot):
                self._feed_again(session)
        step = ModelStep.of(
            [(session.state.slot, session.position, ids, rows) for session, ids, rows in work]
        )
        positions = [session.position for session, _, _ in work]
        ahead = self._ahead.take(work)
        if ahead is not None:
            runner = self._loader.load()
            return Begun(work, positions, runner, step, lambda: list[Logits | None](ahead), False)
        self._loader.make_room({session.state.slot: session.position + len(ids) for session, ids, _ in work})
        runner = self._loader.load()
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

    def finish(self, begun: Begun, judge: Judge | None = None) -> list[Logits | None]:
        """What `advance` gives, when the step is done."""
        kept = [len(ids) for _, ids, _ in begun.work]
        try:
            found = begun.parts()
            if judge is not None:
                kept = [
                    count if part is None else judge(number, part)
                    for number, (count, part) in enumerate(zip(kept, found, strict=True))
                ]
            if not begun.committed:
                begun.runner.commit(begun.step, kept)
        except BaseException:
            self._fail(begun)
            raise
        for (session, ids, _), count, part in zip(begun.work, kept, found, strict=True):
            left_out = len(ids) - count
            if not begun.committed:
                session._advance(ids[:count], left_out)
            session.last_logits = None if part is None else part[-1 - left_out].copy()
        return found

    def _fail(self, begun: Begun) -> None:
        """The sessions are as they were before the step, or have to be fed again to be so."""
        if not begun.committed:
            begun.runner.discard(begun.step)
            return
        for session, position in zip((session for session, _, _ in begun.work), begun.positions, strict=True):
            self._remote.lose(session.state.slot)
            session._retreat(position)

    @property
    def _remote(self) -> RemoteStates:
        """Where states can be lost."""
        assert isinstance(self._states, RemoteStates)
        return self._states

    def _feed_again(self, session: Session) -> None:
        """What a session remembered is gone: it reads its tokens once more."""
        tokens = session.tokens
        self._remote.reset(session.state.slot)
        session._retreat(0)
        try:
            if tokens:
                self._feed([Job(session, tokens)], "none", None)
        except BaseException:
            self._remote.lose(session.state.slot)
            session._resume(tokens)
            raise

    def expect(self, generation: Generation, rows: int) -> None:
        """The generation will choose tokens from so many rows of its session's next step: for who should know."""
        runner, session = self._loader.runner, generation.session
        if runner is not None and runner.expects and session is not None:
            with self._loader.lock, suppress(PenstockError):  # said again when the token is asked for
                runner.expect(session.state.slot, generation.sampler.choices(rows))

    # ── one after another ─────────────────────────────────────────────────────────────────────────────────

    def feed(
        self, work: Sequence[tuple[Session, Sequence[int]]], logits: str, progress: Progress | None = None
    ) -> list[Logits | None]:
        """See `Engine.feed`; "kept" → None, and each session has its last logits where they lie."""
        jobs = [Job(session, checked_ids(ids, self._vocab_size)) for session, ids in work]
        if len({id(job.session) for job in jobs}) != len(jobs):
            raise OptionError("a session appears twice in one batch")
        for job in jobs:
            if job.session.state.pool is not self._states:
                raise OptionError("a session belongs to another engine")
        with self._loader.lock:
            for job in jobs:
                job.session.state.check_room(len(job.ids))
            self._feed(jobs, logits, progress)
            return [job.result(logits) for job in jobs]

    def _feed(self, jobs: list[Job], logits: str, progress: Progress | None) -> None:
        """Step by step; where several can be under way, the next begins when the one before is with others."""
        under_way: deque[tuple[list[tuple[Job, list[int]]], Begun]] = deque()
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
        self, jobs: list[Job], logits: str, progress: Progress | None
    ) -> tuple[list[tuple[Job, list[int]]], Begun]:
        """As many waiting tokens as a chunk holds, first sessions first."""
        taken = first_tokens(jobs, self.piece(sum(len(job.ids) for job in jobs)))

        before, count = sum(job.done for job in jobs), sum(len(ids) for _, ids in taken)
        tell = None if progress is None else lambda share: progress(before + share * count)
        begun = self._begin([(job.session, ids, job.rows(ids, logits)) for job, ids in taken], tell)
        for job, ids in taken:
            job.done += len(ids)
        waiting = next((job.ids[job.done :] for job in jobs if job.left), None)
        if waiting is not None:
            self._loader.load().announce(waiting[: self._loader.plan.chunk])
        return taken, begun

    # ── before tokens are known ───────────────────────────────────────────────────────────────────────────

    def run_ahead(self, generations: Sequence[Generation]) -> None:
        """Begins the step after the tokens that these are choosing, before anybody knows them, where a device can
        (`engine/ahead.py`).  Whether or not it did, `advance` comes next, with the tokens."""
        with (
            self._loader.lock,
            suppress(PenstockError),
        ):  # what is wrong with a step is said when it is needed
            work = [
                (each.session, each.sampler.choosing)
                for each in generations
                if each.session is not None and not each.is_last
            ]
            choices = [choice for _, choice in work if choice is not None]
            if not self._ahead.allowed or self._loader.runner is None or not work or len(choices) < len(work):
                return
            if self._loader.plan.tiers is not None:  # the host has its part in every layer: nothing is gained
                return
            source = self._loader.backend.sampling.tokens(choices)
            if source is None:
                return
            step = ModelStep.of([(each.state.slot, each.position, [0], 1) for each, _ in work], source)
            self._loader.make_room({each.state.slot: each.position + 1 for each, _ in work})
            self._ahead.begin(step, choices, self._loader.load().run(step))

    def has_begun(self, sessions: Sequence[Session]) -> bool:
        """Whether the next step of these is under way already."""
        return self._ahead.has(sessions)

    def _discard(self, step: ModelStep, slots: Collection[int]) -> None:
        """A step counts for nothing in these of its slots, as far as somebody holds them."""
        held = tuple(slot for slot in slots if slot in self._loader.written)
        if self._loader.runner is not None:
            self._loader.runner.discard(replace(step, slots=held))

    # ── drafts ────────────────────────────────────────────────────────────────────────────────────────────

    def draft_logits(self, session: Session, token: int) -> Logits:
        """See `Architecture.draft_logits`."""
        (token,) = checked_ids([token], self._vocab_size)
        with self._loader.lock:
            self._ahead.drop()  # its logits are where these will be
            return self._loader.load().draft_logits(session.state.slot, session.position, token)

    def draft(self, session: Session, token: int, most: int, least: float) -> list[tuple[int, float]]:
        """See `Architecture.draft`."""
        with self._loader.lock:
            self._ahead.drop()
            return self._loader.load().draft(session.state.slot, session.position, token, most, least)

    def draft_room(self, rows: int, position: int) -> int:
        """Drafts that a step of so many rows could have besides, for a session that will be at `position` without
        them."""
        most = min(self._loader.plan.chunk, self.logit_rows) - rows
        return max(0, min(most, self._loader.context - position, self._states.layout.max_rewind))

    def draft_knows(self, session: Session) -> bool:
        """See `Architecture.draft_knows`."""
        with self._loader.lock:
            return self._loader.load().draft_knows(session.state.slot, session.position)

    def keep_up(self, wanted: bool) -> None:
        """See `Architecture.keep_up`."""
        with self._loader.lock:
            if self._loader.runner is not None:
                self._loader.runner.keep_up(wanted)

    @property
    def draft_seconds(self) -> float:
        """See `Runner.draft_seconds`."""
        return 0.0 if self._loader.runner is None else self._loader.runner.draft_seconds

    @property
    def waits(self) -> tuple[int, float]:
        """Since the weights were loaded: bytes of experts that had to come, and seconds of waiting for them."""
        return (0, 0.0) if self._loader.runner is None else self._loader.runner.waits()


def _parts(work: Sequence[tuple[Session, list[int], int]], logits: Logits) -> list[Logits | None]:
    """Of each session's rows."""
    ends = accumulate(rows for _, _, rows in work)
    return [logits[end - rows : end] if rows else None for (_, _, rows), end in zip(work, ends, strict=True)]

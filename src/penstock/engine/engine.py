"""The engine: a loaded model, the sessions on it, and generation.  Speaks token ids."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from penstock.backend.base import Backend, Logits
from penstock.backend.device import DeviceBackend
from penstock.backend.state import StateMemory
from penstock.engine.answer import answer
from penstock.engine.loader import Loader
from penstock.engine.opening import open_model, open_tokenizer
from penstock.engine.options import EngineOptions
from penstock.engine.progress import PrefillProgress, PrefillWatch
from penstock.engine.runner import Loading, Runner
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.speculation import Speculation
from penstock.engine.stepping import Stepper
from penstock.engine.steps import Generation, Step
from penstock.errors import OptionError, TokenError
from penstock.kv.snapshot import Snapshot, load_snapshot
from penstock.kv.state import SequenceState
from penstock.option import takes
from penstock.storage.heat import ExpertMap
from penstock.storage.plan import Plan
from penstock.storage.storage import Storage
from penstock.tokenizer import Tokenizer
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig

RECORDED: Final = 2  # steps until a device repeats what it has recorded of others with as many rows


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
        self.loader = Loader(self.checkpoint, chosen)
        self.checkpoint = self.loader.checkpoint
        self.backend: Backend = self.loader.backend
        self.context = self.loader.context
        self.states: StateMemory = self.loader.states
        self.written = self.loader.written
        self.machines = self.loader.machines
        self.stepper = Stepper(self.loader, self.config.vocab_size)
        self.speculation = self.new_speculation()
        if load:
            self.load(progress)

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def plan(self) -> Plan:
        """What goes where in memory."""
        return self.loader.plan

    @property
    def parked(self) -> bool:
        """Whether the weights are not in memory.  The next step brings them back."""
        return self.loader.runner is None

    @property
    def loading(self) -> Loading | None:
        """How far the reading of weights is, while they are read."""
        return self.loader.loading

    @property
    def runner(self) -> Runner:
        """What runs steps.  Brings the weights back if they are not in memory."""
        runner = self.loader.runner
        if runner is None:
            with self.loader.lock:
                runner = self.loader.load()
        return runner

    @property
    def storage(self) -> Storage:
        """Where the weights are."""
        return self.runner.storage

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads the weights to memory, if they are not there.  `progress` is told bytes read, and bytes in all;
        meanwhile `loading` says the same to other threads."""
        with self.loader.lock:
            self.loader.load(progress)

    def park(self) -> None:
        """Gives the memory of the weights back, after the step that is running.  Sessions stay as they are.

        >>> engine.park()
        >>> engine.parked
        True
        """
        self.loader.park()

    def stats(self) -> dict[str, Any]:
        """What the weights' storage has done since they were loaded: hits, misses, bytes, waits.

        >>> engine.load()
        >>> engine.stats()["mode"]
        'mmap'
        """
        runner = self.loader.runner
        found: dict[str, Any] = {"mode": "parked"} if runner is None else runner.storage.stats()
        if isinstance(self.backend, DeviceBackend):
            found["device"] = self.backend.stats()
        if self.machines is not None:
            found["cluster"] = self.machines.stats()
        if self.speculation is not None:
            found["draft"] = self.speculation.stats()
        return found

    def expert_map(self) -> ExpertMap | None:
        """Which experts are in memory, and how much each was used lately; None while no weights are in memory.
        Does not wait for a step."""
        runner = self.loader.runner
        return None if runner is None else runner.storage.experts.map()

    def close(self) -> None:
        """Ends a trace and the threads that read.  The engine cannot be used afterwards."""
        self.loader.close()

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
        """Memory of a session that has read so many tokens, rounded up."""
        return self.loader.state_bytes(position)

    @property
    def fingerprint(self) -> str:
        """Identity of the model and of every option that changes what a session's state contains."""
        return self.loader.fingerprint

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
        return self.stepper.feed(work, logits, progress)

    def mtp_logits(self, session: Session, next_token: int) -> Logits:
        """What the draft block expects two tokens ahead: after `next_token`, which is about to follow.  [vocab]

        >>> logits = session.feed([0, 17, 4])
        >>> engine.mtp_logits(session, next_token=5).shape
        (4096,)
        """
        if not self.checkpoint.has_mtp:
            raise OptionError(
                f"{self.checkpoint.path}: the model has no MTP block, or it was left out; "
                "draft 'mtp' keeps it, and mtp names a file that has one"
            )
        if session.position == 0:
            raise OptionError("mtp_logits needs a session with at least one token")
        if not self.stepper.draft_knows(session):  # it did not keep up, where nobody drafted
            self.stepper.keep_up(True)
            tokens, session = session.tokens, self.session()
            session.feed(tokens, "none")
        return self.stepper.draft_logits(session, next_token)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Who drafts for answers, as the option `draft` says."""
        chosen = self.options.draft
        if not self.loader.drafts:
            return ()
        checkpoint = self.checkpoint
        found = {
            "ngram": chosen in ("auto", "ngram"),
            "mtp": checkpoint.has_mtp,
            "dspark": checkpoint.has_dspark,
        }
        return tuple(name for name, drafts in found.items() if drafts)

    def new_speculation(self) -> Speculation | None:
        """What learns about drafts, with nothing learned yet; None if nobody drafts."""
        # The first step of every width counts for nothing anyway.
        fresh = RECORDED - 1 if isinstance(self.backend, DeviceBackend) else 0
        return Speculation(self.drafters, fresh) if self.drafters else None

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
        self.stepper.expect(generation, 1)
        self.stepper.feed([(session, prompt_ids)], "kept", watch)
        yield from answer(session, generation)

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
        return open_tokenizer(self.checkpoint)

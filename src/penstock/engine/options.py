"""What can be chosen when a model is opened: one value that Python, the command line and the server share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import OptionError
from penstock.machine.cpu import read_cpu
from penstock.option import check, choice, file, make, number, option, size, switch, text, whole
from penstock.storage.policies import POLICIES

if TYPE_CHECKING:
    from penstock.weights.checkpoint import Checkpoint

# Names of things that are made elsewhere, said here so that help can be shown without loading them.
KV_DTYPES: Final = ("f16", "bf16", "f32")
MODES: Final = ("auto", "resident", "mmap", "direct")

RUNNING: Final = ("run", "chat", "serve", "bench")  # commands that run a model
PLANNING: Final = (*RUNNING, "plan")  # and the one that says how it would be run
ENGINE: Final[dict[str, Any]] = {"group": "Engine", "commands": PLANNING}
MEMORY: Final[dict[str, Any]] = {"group": "Memory", "commands": (*PLANNING, "imatrix", "worker")}
READING: Final[dict[str, Any]] = {"group": "Memory", "commands": (*RUNNING, "imatrix", "worker")}
CLUSTER: Final[dict[str, Any]] = {"group": "Cluster", "commands": RUNNING}
STAGE: Final[dict[str, Any]] = {"group": "Cluster", "commands": (*RUNNING, "worker")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a model is opened.  Checked on creation: an impossible value is an error, never ignored.

    >>> penstock.EngineOptions(memory="2GiB", streaming="direct").memory == 2 << 30
    True
    >>> penstock.EngineOptions(streaming="disk")
    Traceback (most recent call last):
    penstock.errors.OptionError: streaming is 'disk', expected one of auto, resident, mmap, direct

    A new option is one more field.  It is then a keyword of `Engine`, a flag of the commands that it names, a value
    in `/props` and, after `make docs`, a line of docs/options.md.
    """

    device: str = option(
        "auto",
        choice("auto", "cpu", "cuda", "cuda:N", also=r"cuda:\d+"),
        "Where the model runs; auto takes an NVIDIA GPU, which then has as many experts as fit in its memory, and "
        "the CPU where there is none that can be used and for models below a gigabyte.",
        effective=lambda engine: engine.backend.name,
        group="Engine",
        commands=(*PLANNING, "worker"),
    )
    threads: int | None = option(
        None,
        whole(1),
        "CPU threads.",
        unset="every core that this process may use",
        group="Engine",
        commands=(*PLANNING, "trace record", "imatrix", "worker"),
        effective=lambda engine: engine.options.thread_count,
    )
    context: int | None = option(
        None,
        whole(1),
        "Most tokens that a session may hold; memory for all of them is set aside.",
        unset="as many as fit, for which weights give way once they come",
        flags=("--context", "--ctx"),
        group="Engine",
        commands=("run", "chat", "serve", "plan"),
        effective=lambda engine: engine.context,
    )
    sessions: int = option(
        1,
        whole(1),
        "How many are in use at the same time: the plan has memory for one that fills the context and for the others "
        "with an eighth of it.  The server takes --parallel.",
    )
    request_bytes: int = option(
        0,
        whole(0, 1 << 50),
        "Bytes of memory that the plan has for requests on their way to prompts.  The server takes what --max-body "
        "needs.",
    )
    max_rewind: int = option(64, whole(0), "Tokens that a session can always step back.")
    prefill_chunk: int | None = option(
        None,
        whole(1),
        "Most tokens processed at a time.",
        unset="as the plan chooses",
        effective=lambda engine: engine.plan.chunk,
    )
    kv_dtype: str = option("f16", choice(*KV_DTYPES), "How attention rows are stored.", **ENGINE)
    simulate_low_precision: bool = option(
        False,
        switch(),
        "Round where DeepSeek's own inference code rounds (FP8/FP4).",
        group="Engine",
        commands=RUNNING,
    )
    chat_format: str = option(
        "auto",
        choice("auto", "april", "0731"),
        "Which release's prompts the model was taught; auto: as its name, its template or its draft module tells.",
        group="Engine",
        commands=("run", "chat", "serve"),
    )
    draft: str = option(
        "auto",
        choice("auto", "off", "mtp", "dspark", "ngram"),
        "Who guesses tokens that a step then checks, several for little more than one costs: mtp or dspark, the "
        "model's draft block or DSpark module, which takes memory; ngram, what followed last time; auto: all that "
        "there are, where they pay, but ngram alone where memory is short, no mtp on a GPU, and nobody where experts "
        "come from a GPU's host; off: nobody.  The text is the same.",
        effective=lambda engine: "+".join(engine.drafters) or "off",
        **ENGINE,
    )
    mtp: Path | None = option(
        None,
        file(),
        "A GGUF file with the draft block.",
        unset="the model's own, or the file beside it",
        group="Engine",
        commands=(*PLANNING, "worker"),
    )
    memory: str | int | None = option(
        "auto",
        size("auto"),
        "What the process may take, such as 8GiB; auto: what is safe now; none: no limit.",
        unset="no limit",
        effective=lambda engine: engine.plan.budget,
        **MEMORY,
    )
    vram: str | int | None = option(
        None,
        size(),
        "What the process may take of a GPU's memory.  An error where the model runs on the CPU.",
        effective=lambda engine: engine.plan.budget if engine.backend.name != "cpu" else None,
        unset="what is free",
        **MEMORY,
    )
    exact: bool = option(
        False,
        switch(),
        "Where a GPU holds only some of the experts, compute all of them there: the same bits whatever it holds.",
        group="Memory",
        commands=PLANNING,
    )
    streaming: str = option(
        "auto",
        choice(*MODES),
        "mmap: the system pages the file in and out; direct: experts, and if need be all weights, are read when "
        "needed; resident: read and kept; auto: by what fits.",
        effective=lambda engine: engine.plan.mode,
        **MEMORY,
    )
    policy: str = option(
        "auto",
        choice("auto", *POLICIES),
        "Which experts leave memory first.",
        effective=lambda engine: engine.stats().get("policy", engine.options.policy),
        **READING,
    )
    prefetch: str = option(
        "auto", choice("auto", "off"), "Read experts ahead that the next layer will probably want.", **READING
    )
    learn: str = option(
        "on",
        choice("on", "off"),
        "Remember how often experts are used, in the user's cache folder, and begin with the most used ones.",
        **MEMORY,
    )
    pack: Path | str | None = option(
        "auto",
        file("auto"),
        "A file from which each expert is one read (penstock pack); auto: MODEL.pack, if it is there and fits.",
        unset="never",
        **READING,
    )
    trace: Path | None = option(
        None, file(), "Record to this file which experts are asked for.", unset="nowhere", **READING
    )
    cluster: str | None = option(
        None,
        text(),
        "HOST:PORT of this machine where workers join (penstock worker): they run the other layers, or with "
        "--stages 1 some of the experts.",
        unset="this machine alone",
        **CLUSTER,
    )
    stages: int = option(
        2, whole(1, 64), "Machines that the layers are spread over, this one included.", **CLUSTER
    )
    layers: str = option(
        "auto",
        choice("auto", "FIRST:END", also=r"\d+:\d+(,\d+:\d+)*"),
        "Layers that this machine runs, such as 0:21, or 0:11,22:33 to take turns with the others; auto: by the "
        "machines' memory and speed.",
        **STAGE,
    )
    secret: Path | None = option(
        None,
        file(),
        "The file with the secret that all machines of a cluster know.",
        unset="~/.config/penstock/cluster.secret, made when it is first needed",
        **STAGE,
    )
    interface: str | None = option(
        None,
        text(),
        "The address of this machine that the other stages reach it by.",
        unset="the one that the control connection has",
        **STAGE,
    )
    boundary: str = option(
        "bf16",
        choice("bf16", "f32"),
        "How numbers cross from stage to stage; f32 gives the very bits that one machine gives.",
        **CLUSTER,
    )
    cluster_timeout: float = option(
        20.0,
        number(1, 3600, "a number of seconds from 1 to 3,600"),
        "Seconds of silence after which a stage counts as lost.",
        **CLUSTER,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.vram is not None and self.device == "cpu":
            raise OptionError(f"vram is {self.vram!r}, but the model runs on the CPU: no GPU is used")
        if self.simulate_low_precision and self.device.startswith("cuda"):
            raise OptionError(f"simulate_low_precision is for the CPU, and device is {self.device!r}")
        if self.draft in ("off", "ngram") and self.mtp is not None:
            raise OptionError(
                f"mtp is {str(self.mtp)!r}, but draft is {self.draft!r}, which leaves the draft block out"
            )

    @classmethod
    def make(cls, **options: Any) -> "EngineOptions":
        """As `Engine` takes them: a name that there is not is an error that names the closest one."""
        return make(cls, options)

    @property
    def memory_bytes(self) -> int | None:
        """The budget; None without one, or while it is still to be found."""
        return self.memory if isinstance(self.memory, int) else None

    @property
    def vram_bytes(self) -> int | None:
        """The budget of a GPU's memory; None without one: all that is free."""
        return self.vram if isinstance(self.vram, int) else None

    @property
    def thread_count(self) -> int:
        """CPU threads that are really used."""
        return self.threads or read_cpu().usable

    def with_draft(self, checkpoint: "Checkpoint") -> "Checkpoint":
        """The model with its draft block or without it, as `draft` says."""
        for draft, found, what in (
            ("mtp", checkpoint.has_mtp, "MTP block"),
            ("dspark", checkpoint.has_dspark, "DSpark module"),
        ):
            if self.draft == draft and not found:
                raise OptionError(
                    f"draft is {draft!r}, but {checkpoint.path} has no {what}; mtp names a file with one"
                )
        return checkpoint if self.draft in ("auto", "mtp", "dspark") else checkpoint.without_draft()

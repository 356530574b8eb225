"""What can be chosen when a model is opened: one value that Python, the command line and the server share."""

from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OptionError
from penstock.storage.plan import MODES
from penstock.storage.policies import POLICIES
from penstock.backend.state import KV_DTYPES
from penstock.machine.cpu import read_cpu
from penstock.sizes import parse_size


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Checked on creation: an impossible value is an error, never ignored.

    threads                 CPU threads; None takes every core that this process may use, by affinity and quota
    kv_dtype                how attention rows are stored: "f16", "bf16" or "f32"
    simulate_low_precision  round where DeepSeek's own inference code rounds (FP8/FP4)
    context                 most tokens a session may hold; None takes the model's own limit
    sessions                how many are in use at the same time: the plan has memory for one that fills the context
                            and for the others with an eighth of it
    max_rewind              how many tokens a session can always step back
    prefill_chunk           most tokens processed at a time; None lets the plan choose
    memory                  what the process may take: bytes, "8GiB", "auto" for what is safe now, or None: no limit
    streaming               "mmap": the system pages the file in and out; "direct": experts, and if need be all
                            weights, are read when needed; "resident": read and kept; "auto": by what fits
    policy                  which experts leave the cache first: lru, lfu, lfru, s3fifo, hot, or auto
    prefetch                "auto": read experts ahead that the next layer will probably want; "off"
    pack                    a file from which each expert is one read (`penstock pack`); "auto": the one beside the
                            model, if it is there and fits; None: never.  Mapped experts need none
    trace                   a file that records which experts were asked for
    mtp                     a GGUF file with the draft block, if the model's own has none
    draft                   whether sessions are kept ready for the draft block (`mtp_logits`), which costs a little
    """

    threads: int | None = None
    kv_dtype: str = "f16"
    simulate_low_precision: bool = False
    context: int | None = None
    sessions: int = 1
    max_rewind: int = 64
    prefill_chunk: int | None = None
    mtp: Path | None = None
    draft: bool = True
    memory: str | int | None = None
    streaming: str = "auto"
    policy: str = "auto"
    prefetch: str = "auto"
    pack: Path | str | None = "auto"
    trace: Path | None = None

    device: str = "auto"

    @classmethod
    def make(cls, **options: object) -> "EngineOptions":
        for name in ("mtp", "trace", "pack"):
            value = options.get(name)
            if isinstance(value, str) and value != "auto":
                options[name] = Path(value)
        return cls(**options)  # type: ignore[arg-type]

    @property
    def drafts(self) -> bool:
        return bool(self.draft)

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise OptionError(f"kv_dtype is {self.kv_dtype!r}, expected one of {', '.join(KV_DTYPES)}")
        for name, low in (
            ("threads", 1),
            ("context", 1),
            ("sessions", 1),
            ("max_rewind", 0),
            ("prefill_chunk", 1),
        ):
            value = getattr(self, name)
            if value is None and name not in ("max_rewind", "sessions"):
                continue
            if type(value) is not int or not low <= value <= 1 << 31:
                raise OptionError(f"{name} is {value!r}, expected a whole number from {low}")

        for name, known in (
            ("streaming", MODES),
            ("policy", ("auto", *POLICIES)),
            ("prefetch", ("auto", "off")),
        ):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if not (self.pack in ("auto", None) or isinstance(self.pack, Path)):
            raise OptionError(f"pack is {self.pack!r}, expected 'auto', the path of a file or None")
        number = type(self.memory) is int and self.memory > 0
        if not (number or self.memory is None or isinstance(self.memory, str)):
            raise OptionError(
                f"memory is {self.memory!r}, expected bytes, an amount such as '8GiB', 'auto' or None"
            )
        if self.memory != "auto":
            self.memory_bytes  # noqa: B018 - an amount that cannot be read is an error here and now

    @property
    def memory_bytes(self) -> int | None:
        """The budget; None without one."""
        return parse_size(self.memory, "memory") if isinstance(self.memory, str) else self.memory

    @property
    def thread_count(self) -> int:
        return self.threads or read_cpu().usable

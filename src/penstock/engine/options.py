"""What can be chosen when a model is opened: one value that Python, the command line and the server share."""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OptionError
from penstock.kv.state import KV_DTYPES


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Checked on creation: an impossible value is an error, never ignored.

    threads                 CPU threads; None takes every core this process may use
    kv_dtype                how attention rows are stored: "f16", "bf16" or "f32"
    simulate_low_precision  round where DeepSeek's own inference code rounds (FP8/FP4)
    context                 most tokens a session may hold; None takes the model's own limit
    max_rewind              how many tokens a session can always step back
    prefill_chunk           most tokens processed at a time
    mtp                     a GGUF file with the draft block, if the model's own has none
    """

    threads: int | None = None
    kv_dtype: str = "f16"
    simulate_low_precision: bool = False
    context: int | None = None
    max_rewind: int = 64
    prefill_chunk: int = 512
    mtp: Path | None = None

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise OptionError(f"kv_dtype is {self.kv_dtype!r}, expected one of {', '.join(KV_DTYPES)}")
        for name, low in (("threads", 1), ("context", 1), ("max_rewind", 0), ("prefill_chunk", 1)):
            value = getattr(self, name)
            if value is None and name in ("threads", "context"):
                continue
            if type(value) is not int or not low <= value <= 1 << 31:
                raise OptionError(f"{name} is {value!r}, expected a whole number from {low}")

    @property
    def thread_count(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))

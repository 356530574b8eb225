"""Penstock: DeepSeek-V4 on the machine you have.

>>> import penstock
>>> engine = penstock.Engine("model.gguf")                        # doctest: +SKIP
>>> for step in engine.generate(engine.tokenizer.encode("Hello")):  # doctest: +SKIP
...     print(step.text, end="")
"""

from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.steps import Step
from penstock.errors import (
    ContextLengthError,
    ModelFormatError,
    OptionError,
    PenstockError,
    RewindError,
    SnapshotError,
    TokenError,
)

__version__ = "0.1.0"

__all__ = [
    "ContextLengthError",
    "Engine",
    "EngineOptions",
    "ModelFormatError",
    "OptionError",
    "PenstockError",
    "RewindError",
    "Sampling",
    "Session",
    "SnapshotError",
    "Step",
    "TokenError",
    "__version__",
]

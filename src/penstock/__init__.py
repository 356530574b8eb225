"""Penstock: DeepSeek-V4 on the machine you have.

>>> import penstock
>>> engine = penstock.Engine("model.gguf")                        # doctest: +SKIP
>>> for step in engine.generate(engine.tokenizer.encode("Hello")):  # doctest: +SKIP
...     print(step.text, end="")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.engine.engine import Engine as Engine
    from penstock.engine.options import EngineOptions as EngineOptions
    from penstock.engine.sampling import Sampling as Sampling
    from penstock.engine.session import Session as Session
    from penstock.engine.steps import Step as Step
    from penstock.errors import (
        ContextLengthError as ContextLengthError,
    )
    from penstock.errors import (
        ModelFormatError as ModelFormatError,
    )
    from penstock.errors import (
        OptionError as OptionError,
    )
    from penstock.errors import (
        PenstockError as PenstockError,
    )
    from penstock.errors import (
        RewindError as RewindError,
    )
    from penstock.errors import (
        SnapshotError as SnapshotError,
    )
    from penstock.errors import (
        TokenError as TokenError,
    )

__version__ = "0.1.0"

# Imported when first used, so that a command that needs one part does not wait for the others.
_HOMES = {
    "Engine": "penstock.engine.engine",
    "EngineOptions": "penstock.engine.options",
    "Sampling": "penstock.engine.sampling",
    "Session": "penstock.engine.session",
    "Step": "penstock.engine.steps",
    "ContextLengthError": "penstock.errors",
    "ModelFormatError": "penstock.errors",
    "OptionError": "penstock.errors",
    "PenstockError": "penstock.errors",
    "RewindError": "penstock.errors",
    "SnapshotError": "penstock.errors",
    "TokenError": "penstock.errors",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""The pocket model: a small DeepSeek-V4 that ships with the package, for trying things out and for tests."""

from pathlib import Path

import penstock
from penstock.errors import ModelFormatError

NAME = "pocket.gguf"


def pocket_path() -> Path:
    """Where the model lies."""
    for folder in penstock.__path__:
        path = Path(folder) / "pocket" / NAME
        if path.exists():
            return path
    raise ModelFormatError(f"{NAME} is missing from the installation; name a model with -m")

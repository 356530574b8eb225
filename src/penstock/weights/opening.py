"""Opens a model of any supported kind."""

from pathlib import Path

from penstock.errors import ModelFormatError
from penstock.weights.checkpoint import Checkpoint, validate
from penstock.weights.open_folder import open_folder
from penstock.weights.open_gguf import open_gguf, with_sidecar


def open_checkpoint(path: str | Path, mtp: str | Path | None = None) -> Checkpoint:
    """Opens a `.gguf` file, the first of several splits, or a folder of safetensors.  `mtp` names a separate
    GGUF file that holds the draft block."""
    path = Path(path)
    if path.is_dir():
        found = open_folder(path)
    elif path.exists():
        found = open_gguf(path)
    else:
        raise ModelFormatError(f"{path}: no such file or folder")
    if mtp is not None:
        found = with_sidecar(found, Path(mtp))
    validate(found)
    return found

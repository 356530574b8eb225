"""The model that an engine with these options runs."""

from pathlib import Path

from penstock.engine.options import EngineOptions
from penstock.hub.find import find_model
from penstock.hub.library import draft_beside
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint


def open_model(name: str | Path, options: EngineOptions, *, download: bool = True) -> Checkpoint:
    """Opened, with its draft block or without it, as the options say.

    A draft block that is demanded, and neither in the model nor named, may lie in a file beside it.
    """
    path = find_model(name, download=download)
    checkpoint = open_checkpoint(path, options.mtp)
    if options.draft == "mtp" and options.mtp is None and not checkpoint.has_mtp:
        checkpoint = open_checkpoint(path, draft_beside(path))
    return options.with_draft(checkpoint)

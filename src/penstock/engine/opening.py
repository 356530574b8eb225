"""The model that an engine with these options runs."""

from pathlib import Path

from penstock.engine.options import EngineOptions
from penstock.errors import TokenError
from penstock.hub.find import find_model
from penstock.hub.library import draft_beside
from penstock.tokenizer import Tokenizer, tokenizer_from_gguf, tokenizer_from_json
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


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The one that is stored with the model."""
    path, metadata = checkpoint.path, checkpoint.metadata
    if metadata:
        if metadata.get("tokenizer.ggml.model", "none") == "none":
            raise TokenError(f"{path}: the file holds no tokenizer")
        return tokenizer_from_gguf(metadata, str(path))
    if not (path / "tokenizer.json").exists():
        raise TokenError(f"{path}: no tokenizer.json in the folder")
    return tokenizer_from_json(path / "tokenizer.json")

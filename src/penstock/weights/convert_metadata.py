"""GGUF metadata but the hyper-parameters: from the small files of a checkpoint folder, or from another GGUF file."""

import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ModelFormatError
from penstock.tokenizer import tokenizer_to_gguf
from penstock.tokenizer.gguf import BOS, EOS, EOS_LIST, MODEL
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig
from penstock.weights.config_gguf import ARCHITECTURE
from penstock.weights.imatrix import Imatrix
from penstock.weights.safetensors_reader import read_json_file

# Keys of a GGUF file that say how it lies on disk, or how it was made: the new one has its own.
OWN: Final = re.compile(
    r"split\..*|quantize\..*|general\.(alignment|file_type|quantization_version|architecture)"
)


def file_metadata(checkpoint: Checkpoint, file_type: int, imatrix: Imatrix | None) -> dict[str, Any]:
    """Name, file type, tokenizer and chat template; `config_to_gguf` gives the rest."""
    if checkpoint.metadata:
        rest = {
            key: value
            for key, value in checkpoint.metadata.items()
            if not OWN.fullmatch(key) and not key.startswith(f"{ARCHITECTURE}.")
        }
    else:
        folder = checkpoint.path
        rest = {"general.name": folder.resolve().name, **_tokenizer(folder, checkpoint.config)}
    return {
        "general.architecture": ARCHITECTURE,
        "general.file_type": file_type,
        "general.quantization_version": 2,
        **rest,
        **({} if imatrix is None else _imatrix(imatrix)),
    }


def _imatrix(imatrix: Imatrix) -> dict[str, Any]:
    """What llama.cpp writes of an importance matrix."""
    return {
        "quantize.imatrix.file": str(imatrix.path),
        **({"quantize.imatrix.dataset": imatrix.datasets[0]} if imatrix.datasets else {}),
        "quantize.imatrix.entries_count": len(imatrix.entries),
        "quantize.imatrix.chunks_count": imatrix.chunks,
    }


def _tokenizer(folder: Path, config: ModelConfig) -> dict[str, Any]:
    metadata: dict[str, Any] = {MODEL: "none"}
    if (folder / "tokenizer.json").exists():
        metadata = tokenizer_to_gguf(folder / "tokenizer.json", vocab_size=config.vocab_size)
    if config.bos_id is not None:
        metadata[BOS] = config.bos_id
    # Whatever any file of the folder takes for the end of a sequence ends it; config.json's id is the first.
    ends = [*config.eos_ids, *([metadata[EOS]] if EOS in metadata else ()), *metadata.get(EOS_LIST, ())]
    ends = list(dict.fromkeys(ends))
    if ends:
        metadata[EOS] = ends[0]
    if len(ends) > 1:
        metadata[EOS_LIST] = ends
    template = _chat_template(folder)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return {key: _as_int32(value) for key, value in metadata.items()}


def _as_int32(value: Any) -> Any:
    """Lists of whole numbers as i32, the width in which llama.cpp reads token types without looking."""
    if isinstance(value, list) and value and isinstance(value[0], int):
        return np.array(value, np.int32)
    return value


def _chat_template(folder: Path) -> str | None:
    own = folder / "chat_template.jinja"
    if own.exists():
        try:
            return own.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFormatError(f"{own}: cannot be read: {error}") from None
    settings = folder / "tokenizer_config.json"
    template = read_json_file(settings).get("chat_template") if settings.exists() else None
    return template if isinstance(template, str) else None

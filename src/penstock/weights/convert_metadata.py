"""GGUF metadata from the small files of a checkpoint folder: everything but the hyper-parameters."""

from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ModelFormatError
from penstock.tokenizer import tokenizer_to_gguf
from penstock.tokenizer.gguf import BOS, EOS, EOS_LIST, MODEL
from penstock.weights.config import ModelConfig
from penstock.weights.config_gguf import ARCHITECTURE
from penstock.weights.safetensors_reader import read_json_file


def file_metadata(folder: Path, config: ModelConfig, file_type: int) -> dict[str, Any]:
    """Name, file type, tokenizer and chat template; `config_to_gguf` gives the rest."""
    return {
        "general.architecture": ARCHITECTURE,
        "general.name": folder.resolve().name,
        "general.file_type": file_type,
        "general.quantization_version": 2,
        **_tokenizer(folder, config),
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

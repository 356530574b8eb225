"""Opens checkpoint folders: safetensors in the official or the Hugging Face layout."""

from pathlib import Path

from penstock.errors import ModelFormatError
from penstock.weights.checkpoint import Checkpoint, split_unused
from penstock.weights.config_json import config_from_json
from penstock.weights.names import from_safetensors, scale_of
from penstock.weights.safetensors_reader import read_json_file, read_safetensors_folder
from penstock.weights.tensor import TensorInfo
from penstock.weights.types import FP4_E2M1, I8, U8


def open_folder(folder: Path) -> Checkpoint:
    config_path = folder / "config.json"
    if not config_path.exists():
        raise ModelFormatError(
            f"{folder}: no config.json in the folder, expected a folder of safetensors or a GGUF file"
        )
    config = config_from_json(read_json_file(config_path), str(config_path))
    tensors = read_safetensors_folder(folder)
    index: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        canonical = from_safetensors(name)
        if canonical is None:
            if not name.endswith(".scale"):
                index[name] = info
            continue
        if canonical in index:
            raise ModelFormatError(f"{info.file.path}: tensor {name} is a second {canonical}")
        scale = tensors.get(scale_of(name))
        index[canonical] = _attach_scale(info.renamed(canonical), scale)
    return split_unused(folder, "safetensors", config, {}, index)


def _attach_scale(info: TensorInfo, scale: TensorInfo | None) -> TensorInfo:
    if scale is None:
        return info
    kind, shape = info.kind, info.shape
    if kind in (I8, U8):  # two FP4 values in a byte
        kind, shape = FP4_E2M1, (*shape[:-1], shape[-1] * 2)
    return TensorInfo(info.name, kind, shape, info.file, info.offset, info.nbytes, scale)

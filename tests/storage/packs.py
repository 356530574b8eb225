"""Models with packs beside them."""

import json
import shutil
from pathlib import Path

import torch

from penstock.storage.pack import pack_path
from penstock.weights.synth import synth
from tests.weights.official import official_checkpoint, official_config


def make_model(kind: str, folder: Path) -> Path:
    """A tiny GGUF file of one of the mixes, or an official checkpoint with a draft block."""
    path = folder / f"{kind}.gguf"
    if kind == "official":
        official_checkpoint(path, official_config(), seed=0, mtp=True)
    else:
        synth(path, width="tiny", ratios=(0, 4, 128), hash_layers=1, mix=kind)
    return path


def copied(packed: Path, folder: Path) -> tuple[Path, Path]:
    """A model and its pack to be changed."""
    for path in (packed, pack_path(packed)):
        shutil.copy(path, folder)
    return folder / packed.name, pack_path(folder / packed.name)


def write_in_one_piece(folder: Path) -> Path:
    """An official checkpoint with every expert's weights and scales one after another."""
    stored = official_checkpoint(folder, official_config(), seed=0, shards=1).stored
    (shard,) = folder.glob("*.safetensors")
    entries, end = {}, 0
    for name, tensor in stored.items():
        begin, end = end, end + tensor.nbytes
        kind = {torch.int8: "I8", torch.int64: "I64", torch.bfloat16: "BF16", torch.float32: "F32"}
        kind |= {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}
        shape = list(tensor.shape)
        entries[name] = {"dtype": kind[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    data = [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in stored.values()]
    shard.write_bytes(len(header).to_bytes(8, "little") + header + b"".join(data))
    return folder

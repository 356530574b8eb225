"""What the tests of conversion share: models in their folders, and how their answers are compared."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

import penstock
from tests.oracles import hf
from tests.weights.official import (
    Official,
    write_shards,
)

LENGTH = 60
ROUNDING = 1e-5  # of the range of logits: float32 sums in another order
INPUTS_ROUNDED = 2e-4  # products with quantised weights round their inputs to 16 bits; found: up to 8e-5

# llama.cpp rounds activations to the type of the weights, or to 8 bits; measured at a third of these.
FEW_BITS = ("q2", "q2-q4", "q2_k", "q3", "q4", "q5", "q6")
LLAMACPP_ROUNDING = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2} | dict.fromkeys(
    ("q8_0", "mxfp4", "mxfp4_q8_0", *FEW_BITS), 4e-2
)

Logits = NDArray[np.float32]


class Made(NamedTuple):
    folder: Path
    config: DeepseekV4Config
    model: DeepseekV4ForCausalLM
    ids: list[int]


@dataclass(frozen=True)
class Published:
    """A checkpoint in the official layout, and a text on which its trunk and draft block meet no near-tie."""

    made: Official
    config: DeepseekV4Config
    ids: list[int]

    @property
    def folder(self) -> Path:
        return self.made.folder

    @property
    def mtp(self) -> hf.Mtp:
        assert self.made.mtp is not None
        return self.made.mtp


def engine_logits(path: Path, ids: list[int]) -> Logits:
    found = penstock.Engine(path, kv_dtype="f32", threads=1).session().feed(ids, logits="all")
    assert found is not None
    return found


def engine_mtp_logits(path: Path, ids: list[int], mtp: Path | None = None) -> Logits:
    engine = penstock.Engine(path, kv_dtype="f32", threads=1, mtp=mtp)
    session = engine.session()
    rows = []
    for token, following in pairwise(ids):
        session.feed([token], logits="none")
        rows.append(engine.mtp_logits(session, following))
    return np.stack(rows)


def distance(found: Logits, expected: Logits) -> float:
    """Largest difference as a part of the range of `expected`."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


def types_in(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def copied(published: Published, folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """The checkpoint with some of its tensors changed."""
    tensors = dict(published.made.stored)
    edit(tensors)
    folder.mkdir()
    write_shards(folder, tensors, 2)
    shutil.copy(published.folder / "config.json", folder)
    return folder

"""Checkpoint folders to convert."""

import pytest

from tests.oracles import hf
from tests.weights.converting import LENGTH, Made, Published
from tests.weights.official import (
    official_checkpoint,
    official_config,
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A float32 Hugging Face folder."""
    config = hf.tiny_config()
    seed = hf.pick_seed(config, LENGTH)
    model = hf.random_model(config, seed)
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    hf.save(model, folder)
    return Made(folder, config, model, hf.random_ids(config, LENGTH, seed))


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    config = official_config()
    folder = tmp_path_factory.mktemp("official") / "tiny"
    for seed in range(20):
        made = official_checkpoint(folder, config, seed, mtp=True)
        ids = hf.random_ids(config, LENGTH, seed)
        if hf.smallest_gap(made.model, ids, made.mtp) > hf.SAFE_GAP:
            return Published(made, config, ids)
    raise AssertionError("no seed without near-ties")

"""A short run of the fuzzer on every target; `make fuzz` is the long one."""

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import Target, make_targets

COUNTS = {
    "choices": 4000,
    "usage": 400,
    "notes": 2000,
    "imatrix": 1500,
    "imatrix.dat": 1500,
    "gguf": 8000,
    "model": 400,
    "safetensors": 8000,
    "snapshot": 300,
    "unsealed": 600,
    "hub": 4000,
    "config.json": 4000,
    "tokenizer": 150,
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {target.name: target for target in make_targets(tmp_path_factory.mktemp("fuzz"))}


@pytest.mark.parametrize("name", COUNTS)
def test_only_expected_errors_come_out(targets: dict[str, Target], name: str) -> None:
    accepted, _ = fuzz(targets[name], COUNTS[name], seed=1)
    assert accepted < COUNTS[name]  # mutations really reach the checks


def test_the_seeds_are_valid(targets: dict[str, Target]) -> None:
    for target in targets.values():
        for seed in target.seeds:
            if target.name != "snapshot":  # its data is a hole here, so the checksum refuses it
                target.run(seed)

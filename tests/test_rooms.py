"""The map of the package: a lower room never imports a higher one."""

import ast
from pathlib import Path

import pytest

import penstock

# weights ← kernels ← experts ← model ← kv ← engine ← chat, bench ← cli; the machine and the tokenizer stand beside
# the weights.
FLOORS = {
    "errors": 0,
    "sizes": 0,
    "option": 0,
    "environment": 0,
    "machine": 1,
    "weights": 1,
    "tokenizer": 1,
    "native": 1,
    "pocket": 1,
    "kernels": 2,
    "experts": 3,
    "model": 4,
    "kv": 5,
    "engine": 6,
    "chat": 7,
    "bench": 7,
    "server": 8,
    "clients": 8,
    "cli": 9,
}
ROOT = Path(penstock.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)


def _imports(path: Path) -> set[str]:
    """Rooms of penstock that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("penstock.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_room_imports_a_higher_one(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    for room in _imports(path):
        assert FLOORS[room] <= FLOORS[own], f"{own} imports {room}"

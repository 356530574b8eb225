"""The map of the package: a lower room never imports a higher one, and few doors lead to what is special."""

import ast
from pathlib import Path

import pytest

import penstock

# weights, native ← hub, backend ← storage ← model ← kv ← engine ← chat, bench ← server ← cli; the machine and the
# tokenizer stand beside the weights.
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
    "backend": 2,
    "hub": 2,
    "storage": 3,
    "model": 4,
    "kv": 5,
    "engine": 6,
    "cluster": 6,
    "chat": 7,
    "bench": 7,
    "server": 8,
    "clients": 8,
    "cli": 9,
}
ROOT = Path(penstock.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)
by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def imports(path: Path) -> set[str]:
    """Modules of penstock that a file imports, without the first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("penstock.") for name in found if name.startswith("penstock.")}


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


@by_file
def test_no_room_imports_a_higher_one(path: Path) -> None:
    own = room(path)
    for name in imports(path):
        other = name.split(".")[0]
        if other in FLOORS:  # else a name in the package itself
            assert FLOORS[other] <= FLOORS[own], f"{own} imports {other}"


def test_every_room_has_its_floor() -> None:
    assert {room(path) for path in FILES} <= set(FLOORS)


@by_file
def test_a_backend_is_named_where_it_is_chosen_and_nowhere_else(path: Path) -> None:
    inside = room(path) == "backend"
    for device in ("cpu", "cuda"):
        if inside and (path.parent == ROOT / "backend" or device in path.relative_to(ROOT / "backend").parts):
            continue
        assert not any(name.startswith(f"backend.{device}") for name in imports(path))


@by_file
def test_an_architecture_is_named_in_its_model_and_its_ops_only(path: Path) -> None:
    if room(path) not in ("model", "backend"):
        assert not any(name.startswith(("model.deepseek", "backend.deepseek")) for name in imports(path))

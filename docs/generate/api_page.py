"""docs/api.md, made from signatures and docstrings as they stand in the source: nothing is imported, so the page does
not depend on how a version of Python or numpy writes a type."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"
CLASSES: Final = (
    ("penstock.Engine", "penstock.engine.engine"),
    ("penstock.Session", "penstock.engine.session"),
    ("penstock.Step", "penstock.engine.steps"),
    ("penstock.Sampling", "penstock.engine.sampling"),
    ("penstock.EngineOptions", "penstock.engine.options"),
    ("penstock.tokenizer.Tokenizer", "penstock.tokenizer.tokenizer"),
    ("penstock.chat.chat_session.ChatSession", "penstock.chat.chat_session"),
)
ERRORS: Final = "penstock.errors"
# What rooms above the engine use, and nobody outside should.
INSIDE: Final = (
    "runner",
    "storage",
    "restored",
    "state_bytes",
    "advance",
    "run_ahead",
    "has_begun",
    "begin",
    "finish",
    "depth",
    "generation",
    "snapshot",
    "with_draft",
)
INTRODUCTION: Final = """\
# Python

Made by `make docs` from the source; not to be edited by hand. Examples are run by the tests, with the pocket model as
`model.gguf`, `engine = penstock.Engine("model.gguf")` and a new `session = engine.session()`.

The names of `penstock` itself are the interface: they change with a line in [CHANGELOG.md](../CHANGELOG.md).
Everything else may change without. [chat.md](chat.md) has the way from a conversation to an answer.
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    for name, module in CLASSES:
        yield from _class(name, _definition(module, name.rsplit(".", 1)[-1]))
    yield "## penstock.errors\n"
    yield _text(_definition(ERRORS, "PenstockError"))
    yield "| error | also a | |"
    yield "|---|---|---|"
    for node in _module(ERRORS).body:
        if isinstance(node, ast.ClassDef) and node.name != "PenstockError":
            also = [
                base.id for base in node.bases if isinstance(base, ast.Name) and base.id != "PenstockError"
            ]
            yield f"| `{node.name}` | {' '.join(f'`{name}`' for name in also)} | {_docstring(node)} |"
    yield ""


def _module(name: str) -> ast.Module:
    path = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _definition(module: str, name: str) -> ast.ClassDef:
    return next(node for node in _module(module).body if isinstance(node, ast.ClassDef) and node.name == name)


def _class(name: str, node: ast.ClassDef) -> Iterator[str]:
    yield f"## {name}\n"
    signature = next(
        (_signature(node.name, part) for part in _functions(node) if part.name == "__init__"), ""
    )
    if signature and name in ("penstock.Engine", "penstock.chat.chat_session.ChatSession"):
        yield f"```text\n{signature}\n```\n"
    yield _text(node)
    yield from _fields(node)
    properties = [part for part in _public(node) if _is_property(part)]
    if properties:
        yield "| | |"
        yield "|---|---|"
        for part in properties:
            kind = _one_line(_written(part.returns))
            yield f"| `{part.name}`: `{kind}` | {_one_line(_docstring(part))} |"
        yield ""
    for part in _public(node):
        if not _is_property(part):
            yield f"### {node.name}.{part.name}\n"
            yield f"```text\n{_signature(part.name, part)}\n```\n"
            yield _text(part)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Of a dataclass, those that are no options: options have a page of their own."""
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    parts = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    declared = [
        part for part in parts if part.value is not None and ast.unparse(part.value).startswith("option(")
    ]
    others = [part for part in parts if part not in declared]
    if others:
        yield "\n".join(f"- `{ast.unparse(part)}`" for part in others) + "\n"
    if declared:
        more = "The other fields" if others else "The fields"
        yield f"{more} are in [options.md](options.md).\n"


def _functions(node: ast.ClassDef) -> Iterator[Function]:
    return (part for part in node.body if isinstance(part, Function))


def _public(node: ast.ClassDef) -> list[Function]:
    return [part for part in _functions(node) if not part.name.startswith("_") and part.name not in INSIDE]


def _is_property(part: Function) -> bool:
    return any(ast.unparse(decorator) in ("property", "cached_property") for decorator in part.decorator_list)


def _signature(name: str, part: Function) -> str:
    """As a caller writes it, an argument in each line where it is long."""
    arguments = list(_arguments(part.args))
    answer = "" if part.returns is None or part.name == "__init__" else f" -> {_written(part.returns)}"
    whole = f"{name}({', '.join(arguments)}){answer}"
    if len(whole) <= 110:
        return whole
    inside = "".join(f"    {argument},\n" for argument in arguments)
    return f"{name}(\n{inside}){answer}"


def _arguments(given: ast.arguments) -> Iterator[str]:
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    for argument, default in zip(given.args, defaults, strict=True):
        if argument.arg not in ("self", "cls"):
            yield _argument(argument, default)
    if given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _argument(argument, default)
    if given.kwarg:
        yield f"**{given.kwarg.arg}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    given = "" if default is None else f" = {ast.unparse(default)}".replace("'", '"')
    return f"{argument.arg}: {_written(argument.annotation)}{given}"


def _written(annotation: ast.expr | None) -> str:
    return "None" if annotation is None else ast.unparse(annotation).strip("'")


def _docstring(node: Function | ast.ClassDef) -> str:
    found = ast.get_docstring(node)
    assert found, f"{node.name} has no docstring"
    return found


def _one_line(text: str) -> str:
    """For a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _text(node: Function | ast.ClassDef) -> str:
    """A docstring with its examples as blocks."""
    return "\n\n".join(_paragraph(part) for part in _docstring(node).split("\n\n")) + "\n"


def _paragraph(text: str) -> str:
    return f"```pycon\n{text}\n```" if text.startswith(">>> ") else text.replace(".  ", ". ")

"""Adds one option by one line of `penstock/engine/options.py`, and looks for it wherever options are seen.

A program of its own (`python -m tests.cli.one_edit`), because the line has to be there before anything is imported.
"""

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

LINE = '    blue: int = option(3, whole(1, 9), "How blue the sky is.", group="Engine", commands=RUNNING)\n'
BEFORE = "    def __post_init__("
HOME = "penstock.engine.options"
WRONG = "blue is 10, expected a whole number from 1 to 9"


def add_the_line() -> None:
    spec = importlib.util.find_spec(HOME)
    assert spec is not None
    assert spec.origin is not None
    head, mark, rest = Path(spec.origin).read_text(encoding="utf-8").partition(BEFORE)
    module = sys.modules[HOME] = importlib.util.module_from_spec(spec)
    exec(compile(f"{head}{LINE}\n{mark}{rest}", spec.origin, "exec"), module.__dict__)


def look_for_it() -> None:
    import pytest
    from fastapi.testclient import TestClient
    from typer.testing import CliRunner

    from docs.generate.options_page import page
    from penstock import Engine, EngineOptions, OptionError
    from penstock.cli.main import app
    from penstock.pocket import pocket_path
    from penstock.server.http.app import create_app
    from penstock.server.http.settings import Settings
    from penstock.server.service import Service

    declared: Any = EngineOptions
    assert declared(blue=9).blue == 9
    with pytest.raises(OptionError, match=WRONG):
        declared(blue=10)

    assert inspect.signature(Engine).parameters["blue"].default == 3
    with pytest.raises(OptionError, match=WRONG):
        Engine(pocket_path(), blue=10)

    for command in (["run", "Hello"], ["chat"], ["serve"], ["bench"]):
        shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*command, "--help"]).output
        assert "--blue" in shown
        assert "How blue the sky is. [default: 3]" in shown
        with pytest.raises(OptionError, match=WRONG):
            app([*command, "--blue", "10"], standalone_mode=False)

    engine = Engine(pocket_path(), blue=4, threads=1, context=64)
    with engine, TestClient(create_app(Service(engine, Settings()))) as client:
        assert client.get("/props").json()["penstock"]["options"]["blue"] == 4

    line = "| `blue` | `--blue`: run, chat, serve, bench | a whole number from 1 to 9 | `3` | How blue the sky is. |"
    assert line in page().splitlines()


if __name__ == "__main__":
    add_the_line()
    look_for_it()

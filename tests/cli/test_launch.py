"""`penstock launch`: what it prints, what it does to files that people have, and what it starts."""

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.clients.config_file import ConfigError
from penstock.clients.json_file import JsonFile
from penstock.clients.setups import SETUPS
from penstock.clients.target import Target, find
from penstock.clients.toml_file import TomlTable
from penstock.clients.yaml_file import YamlFields, YamlItem
from penstock.errors import OptionError, PenstockError

NOBODY = "http://127.0.0.1:9"
FOLDERS = ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "PI_CODING_AGENT_DIR", "CONTINUE_GLOBAL_DIR")
TARGET = Target("http://host:1", "m", 4096, "k")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*FOLDERS, "PENSTOCK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that is called `own` and holds 12,345 tokens, for those with the key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers: dict[str, Any] = {
                "/v1/models": {"data": [{"id": "own"}]},
                "/props": {"default_generation_settings": {"n_ctx": 12_345}},
                "/strange/v1/models": {"hello": "world"},
            }
            good = self.headers["Authorization"] == "Bearer key"
            self.send_response(200 if good and self.path in answers else 404 if good else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path)).encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def launch(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["launch", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


# ── the server ──


def test_the_server_says_what_it_has(url: str) -> None:
    assert find(f"{url}/v1/", key="key") == Target(url, "own", 12_345, "key", reached=True)
    assert find(url, model="mine", key="key").model == "mine"


def test_without_a_server_something_is_assumed_and_said() -> None:
    assert not find(NOBODY).reached
    assert f"nobody answers at {NOBODY}" in launch("claude", "--url", NOBODY)


def test_what_is_wrong_with_the_address_or_the_key_is_said(url: str) -> None:
    with pytest.raises(OptionError, match="--api-key"):
        find(url)
    with pytest.raises(PenstockError, match="no Penstock server"):
        find(f"{url}/strange", key="key")
    with pytest.raises(PenstockError, match="404"):
        find(f"{url}/other", key="key")
    with pytest.raises(OptionError, match="--url is 'host:1'"):
        find("host:1")


# ── what is printed ──


@pytest.mark.parametrize("client", SETUPS)
def test_every_client_is_told_address_model_key_and_context(client: str, url: str) -> None:
    shown = launch(client, "--url", url, "--api-key", "key", "--", "-p", "two words")
    assert url in shown
    assert "own" in shown or client == "open-webui"  # asks for the models itself
    assert "12345" in shown or client == "open-webui"
    assert "key" in shown
    assert shown.count("-p 'two words'") == 1


def test_an_unknown_client_is_refused_with_the_known_ones() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["launch", "emacs"])
    assert result.exit_code == 2
    assert all(name in result.output for name in SETUPS)


# ── what is written ──


@pytest.mark.parametrize("client", [name for name in SETUPS if name != "open-webui"])
def test_writing_twice_changes_nothing_and_a_new_model_replaces_the_old(client: str, home: Path) -> None:
    assert "written" in launch(client, "--url", NOBODY, "--model", "one", "--write")
    files = {path: path.read_text() for path in home.rglob("*") if path.is_file()}
    assert files
    assert "written" not in launch(client, "--url", NOBODY, "--model", "one", "--write")
    assert {path: path.read_text() for path in home.rglob("*") if path.is_file()} == files
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "there may be a key in it"
    launch(client, "--url", "http://127.0.0.1:8", "--model", "one", "--write")
    assert all(":9/" not in path.read_text() for path in files)
    for setup in SETUPS[client](Target("http://127.0.0.1:8", "one")).files:
        assert setup.written()


def test_what_has_no_file_is_not_written() -> None:
    with pytest.raises(OptionError, match="open-webui has no configuration file"):
        launch("open-webui", "--url", NOBODY, "--write")


def test_folders_of_ones_own_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOLDERS:
        monkeypatch.setenv(name, str(home / "own"))
    for name in ("opencode", "codex", "claude", "pi", "continue"):
        (file,) = SETUPS[name](TARGET).files
        assert file.path.is_relative_to(home / "own")


def test_the_old_file_is_kept_and_a_link_stays_a_link(home: Path) -> None:
    real = home / "dotfiles.json"
    real.write_text('{"theme": "dark", "provider": {"other": {"npm": "x"}}}')
    real.chmod(0o640)
    link = home / ".config" / "opencode" / "opencode.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    launch("opencode", "--url", NOBODY, "--write")
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert (home / "dotfiles.json.bak").read_text().startswith('{"theme": "dark"')
    found = json.loads(real.read_text())
    assert found["theme"] == "dark"
    assert set(found["provider"]) == {"other", "penstock"}
    assert [path.name for path in home.iterdir() if path.name.startswith(".dotfiles")] == []


@pytest.mark.parametrize("text", ["{oops", "[]", '{"provider": 3}', "// comment\n{}"])
def test_json_that_is_not_understood_is_left_alone(text: str, tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "config.json", {"provider": {"penstock": {"a": 1}}})
    file.path.write_text(text)
    with pytest.raises(ConfigError, match=r"config.json: .*nothing was changed"):
        file.write()
    assert file.path.read_text() == text
    assert list(tmp_path.iterdir()) == [file.path]


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be read"):
        JsonFile(tmp_path, {}).write()
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        JsonFile(tmp_path / "file", {}).write()
    with pytest.raises(ConfigError, match="cannot be"):
        JsonFile(tmp_path / "file" / "below", {"a": 1}).write()


TOML = """\
# mine
model = "gpt"

[model_providers.penstock]   # from before
base_url = "old"  # goes
query_params = { a = "b" }

[model_providers.other]
base_url = "other"
"""


@pytest.mark.parametrize("text", [TOML, "", "a = 1", TOML.replace("[model_providers.penstock]", "[x]")])
def test_toml_keeps_what_is_not_ours(text: str, tmp_path: Path) -> None:
    fields: dict[str, str | int | bool] = {"base_url": 'new "url"', "idle": 5, "on": True}
    new = TomlTable(tmp_path / "c.toml", "model_providers.penstock", fields).merged(text)
    wanted = tomllib.loads(text)
    table = wanted.setdefault("model_providers", {}).setdefault("penstock", {})
    table |= fields
    assert tomllib.loads(new) == wanted
    kept = [line for line in text.splitlines() if "goes" not in line]
    assert [line for line in kept if line not in new.splitlines()] == []


@pytest.mark.parametrize(
    "text", ["a = ", "[model_providers]\npenstock = { a = 1 }", "model_providers = 3", "a = '''\n[t]\n"]
)
def test_toml_that_is_not_understood_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c.toml: .*nothing was changed"):
        TomlTable(tmp_path / "c.toml", "model_providers.penstock", {"b": 1}).merged(text)


HEAD = "name: Mine  # my own\n"
ITEM = "- name: Penstock\n  model: old\n  roles:\n    - chat\n"
OTHER = "- name: other\n  model: x\n"


def indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEAD,
        f"{HEAD}models: []\nrules: [a]\n",
        f"{HEAD}models:\n{OTHER}rules:\n- a\n",
        f"{HEAD}models:\n{indented(OTHER)}rules:\n  - a\n",
        f"{HEAD}models:\n{OTHER}{ITEM}{OTHER}rules:\n- a\n",
        f"{HEAD}models:\n{indented(OTHER)}  # ours\n{indented(ITEM)}\nrules:\n- name: Penstock\n",
        f"{HEAD}rules:\n- name: Penstock\n\nmodels:\n{indented(ITEM)}{indented(OTHER)}",
        f"{HEAD}models:\n{indented(ITEM)}",
    ],
)
def test_yaml_keeps_what_is_not_ours(text: str, tmp_path: Path) -> None:
    item = {"name": "Penstock", "model": "new", "roles": ["chat", "edit"], "options": {"n": 1}}
    file = YamlItem(tmp_path / "c.yaml", "models", item, {"name": "Fresh"})
    new = file.merged(text)
    old, found = yaml.safe_load(text) or {"name": "Fresh"}, yaml.safe_load(new)
    assert [model for model in found["models"] if model == item] == [item]
    before = [model for model in old.get("models") or [] if model["name"] != "Penstock"]
    assert [model for model in found["models"] if model["name"] != "Penstock"] == before
    assert {**found, "models": 0} == {**old, "models": 0}
    assert "# my own" in new or not text
    assert file.merged(new) == new


@pytest.mark.parametrize("text", ["a: [", "- a\n", "models: {a: 1}", "models: [{name: Penstock}]"])
def test_yaml_that_is_not_understood_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"c.yaml: .*nothing was changed"):
        YamlItem(tmp_path / "c.yaml", "models", {"name": "Penstock"}, {"name": "x"}).merged(text)


def test_yaml_fields(tmp_path: Path) -> None:
    file = YamlFields(tmp_path / "c.yml", {"model": "openai/m", "timeout": 5})
    text = "# mine\ndark-mode: true\nmodel: gpt  # old\nread:\n  - a.md\n"
    new = file.merged(text)
    assert yaml.safe_load(new) == {"dark-mode": True, "model": "openai/m", "read": ["a.md"], "timeout": 5}
    assert new.startswith("# mine\n")
    with pytest.raises(ConfigError, match="nothing was changed"):
        file.merged("model: |\n  gpt\n  more\n")


# ── what is started ──


@pytest.fixture
def started(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Programs of all names are installed; what would be started is written down instead."""
    programs = home / "bin"
    programs.mkdir()
    for name in ("opencode", "codex", "claude", "pi", "aider", "open-webui", "cn"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", str(programs))
    calls: list[Any] = []

    def execvpe(*call: Any) -> None:
        calls.append(call)
        raise SystemExit(0)  # a program that was replaced does not go on either

    monkeypatch.setattr(os, "execvpe", execvpe)
    return calls


@pytest.mark.parametrize("client", SETUPS)
def test_it_becomes_the_client(client: str, started: list[Any]) -> None:
    files = ["--write"] if client in ("opencode", "codex", "pi", "continue") else []
    launch(client, "--url", NOBODY, "--api-key", "k", "--run", *files, "--", "--more", "words")
    ((program, arguments, environment),) = started
    setup = SETUPS[client](Target(NOBODY, key="k"))
    assert program == arguments[0] == setup.command[0]
    assert arguments == [*setup.command, "--more", "words"]
    assert environment.items() >= setup.environment.items()
    assert "PATH" in environment


def test_a_file_that_says_something_else_is_not_overlooked(started: list[Any], home: Path) -> None:
    """What Claude Code finds in its file counts more than the environment."""
    launch("claude", "--url", "http://127.0.0.1:8", "--write")
    with pytest.raises(OptionError, match=r"claude is told something else by .*settings.json; add --write"):
        launch("claude", "--url", NOBODY, "--run")
    launch("claude", "--url", NOBODY, "--write")
    launch("claude", "--url", NOBODY, "--run")
    (home / ".claude" / "settings.json").write_text('{"theme": "dark", "env": {"OTHER": "1"}}')
    launch("claude", "--url", NOBODY, "--run")
    assert len(started) == 2


def test_a_client_that_reads_only_files_needs_them(started: list[Any]) -> None:
    with pytest.raises(OptionError, match=r"pi also needs .*models.json; add --write"):
        launch("pi", "--url", NOBODY, "--run")
    assert not started
    launch("pi", "--url", NOBODY, "--write")
    launch("pi", "--url", NOBODY, "--run")
    assert len(started) == 1


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PenstockError, match="'claude' is not installed"):
        launch("claude", "--url", NOBODY, "--run")

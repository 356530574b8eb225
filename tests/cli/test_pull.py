"""`penstock pull` and `penstock models` as a person uses them: real processes against a hub on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.fitness import Fitness, Machine
from penstock.cli.main import app
from penstock.cli.pull import judge_known, recommended
from penstock.errors import HubError, OptionError
from penstock.hub.catalog import Known
from penstock.machine.measured_once import NOTICE
from penstock.pocket import pocket_path
from penstock.storage.plan import Plan
from penstock.weights.checkpoint import Checkpoint
from tests.hub.server import Hub, Repo

REPO = "some/pocket-gguf"
FILE = "Pocket-MXFP4.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("penstock.cli.fitness.Machine._speed", lambda *_: 20.0)  # nothing is measured
    with Hub({REPO: Repo({FILE: pocket_path().read_bytes(), "README.md": b"hello"})}) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        yield found


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1"},
    )


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    process = started(*arguments)
    out, errors = process.communicate()
    return subprocess.CompletedProcess("penstock", process.returncode, out, errors)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def test_from_nothing_to_an_answer(hub: Hub) -> None:
    pulled = penstock("pull", REPO)
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == pocket_path().read_bytes()
    assert f"run -m hf:{REPO}" in pulled.stderr
    for name in (f"hf:{REPO}", f"hf:{REPO}:mxfp4", "some"):
        answer = penstock("run", "-m", name, "What is 17 + 25?", "--temperature", 0)
        assert (answer.returncode, answer.stdout) == (0, "42\n"), answer.stderr
    assert len(hub.fetched()) == 2  # parts of 16 MB, once


def test_run_downloads_what_it_needs(hub: Hub) -> None:
    answer = penstock("run", "-m", f"hf:{REPO}", "What is 17 + 25?", "--temperature", 0)
    assert (answer.returncode, answer.stdout) == (0, "42\n"), answer.stderr
    assert hub.fetched()


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_goes_on_where_it_ended(
    hub: Hub, tmp_path: Path, way: signal.Signals
) -> None:
    hub.faults.pause = 0.01
    process = started("pull", REPO)
    deadline = time.monotonic() + 60
    while not (parts := list(tmp_path.rglob("*.incomplete"))) or parts[0].stat().st_size < 100_000:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
        time.sleep(0.01)
    process.send_signal(way)
    _, errors = process.communicate(timeout=60)
    if way is signal.SIGINT:
        assert process.returncode == 130
        assert (
            errors
            == "penstock: interrupted; what has come is kept, and the same command goes on from there\n"
        )
    here = parts[0].stat().st_size
    assert parts[0].read_bytes() == pocket_path().read_bytes()[:here]
    hub.faults.pause = 0
    hub.log.clear()
    done = penstock("pull", REPO, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert Path(report["path"]).read_bytes() == pocket_path().read_bytes()
    assert min(asked.first for asked in hub.fetched()) == here
    assert sum(asked.end - asked.first for asked in hub.fetched()) == report["bytes"] - here


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pull", "no/such"), "no/such: no such public repository"),
        (("pull", "a/gated"), "HF_TOKEN"),
        (("run", "-m", "hf:a/gated", "hi"), "HF_TOKEN"),
        (("plan", "-m", f"hf:{REPO}"), "is not here"),
        (("inspect", f"hf:{REPO}"), "is not here"),
        (("doctor", "-m", f"hf:{REPO}"), "is not here"),
        (("pull", "nonsense"), "names no repository"),
        (("pull", REPO, "--mtp"), "no file with a draft block"),
    ],
)
def test_errors_are_one_line(hub: Hub, arguments: tuple[str, ...], expected: str) -> None:
    hub.repos["a/gated"] = Repo({"m.gguf": b"x" * 2000}, gated=True)
    with pytest.raises(HubError, match=expected) as raised:
        invoke(*arguments)
    assert "\n" not in str(raised.value)


def test_before_anything_is_downloaded(hub: Hub) -> None:
    report = json.loads(invoke("pull", REPO, "--dry-run", "--json").stdout)
    assert report["bytes"] == report["bytes_missing"] == pocket_path().stat().st_size
    assert report["fits"] == "memory"
    assert report["tokens_per_second"] > 0
    assert sum(asked.end - asked.first for asked in hub.fetched()) <= 8 << 20  # the header, not the weights
    text = invoke("pull", REPO, "--dry-run").stdout
    assert "fits in memory" in text
    assert FILE in text


def as_the_disk(_: Machine, checkpoint: Checkpoint, __: Plan, disk: float) -> float:
    return disk / sum(info.nbytes for info in checkpoint.index.values())


def test_what_is_known(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.fitness.Machine.disk_speed", lambda *_: 3e9)
    monkeypatch.setattr("penstock.cli.fitness.Machine._speed", as_the_disk)
    found = judge_known(Machine(), Path.cwd())
    monkeypatch.setattr("penstock.cli.pull.judge_known", lambda *_: found)
    monkeypatch.setattr("penstock.cli.pull.free_bytes", lambda _: 1 << 50)
    report = json.loads(invoke("pull", "--json").stdout)
    rows = {row["name"]: row for row in report["models"]}
    assert report["date"]
    assert rows["q2"]["tokens_per_second"] > rows["q4"]["tokens_per_second"] > 0
    assert rows["ud-q2_k_xl"]["fits"] is None  # not known how it is stored
    assert [row["name"] for row in rows.values() if row["recommended"]] == ["q2"]
    text = invoke("pull").stdout
    assert "recommended here: penstock pull q2" in text
    assert "unknown" in text
    monkeypatch.setattr("penstock.cli.pull.free_bytes", lambda _: 10 << 30)
    assert "too little room" in invoke("pull").stdout
    assert not hub.log


def test_it_says_once_that_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object, say: Callable[[str], None], **__: object) -> SimpleNamespace:
        say(NOTICE)
        return SimpleNamespace(steady=SimpleNamespace(per_second=1.0))

    monkeypatch.setattr("penstock.cli.fitness.expect_here", measure)
    machine = Machine()
    for _ in range(2):
        machine.judge(pocket_path(), Path.cwd())
    assert capsys.readouterr().err.count(NOTICE) == 1


def test_which_is_recommended() -> None:
    def row(name: str, gigabytes: int, fits: str) -> tuple[Known, Fitness]:
        return Known(name, "a/b", "", "", [], about=gigabytes * 10**9), Fitness(fits, "")

    def best(*fits: str, free: int = 1000) -> str | None:
        sizes = (("small", 80), ("middle", 100), ("large", 160))
        rows = [row(name, size, fit) for (name, size), fit in zip(sizes, fits, strict=True)]
        found = recommended([*rows, (Known("unknown", "a/b", "", "", []), None)], free * 10**9)
        return None if found is None else found.name

    assert best("streams", "streams", "streams") == "small"
    assert best("memory", "memory", "streams") == "middle"
    assert best("memory", "memory", "memory") == "large"
    assert best("memory", "memory", "memory", free=120) == "middle"
    assert best("streams", "streams", "streams", free=50) is None
    assert best("no", "no", "no") is None


def test_the_models_that_are_here(hub: Hub, tmp_path: Path) -> None:
    hub.repos["a/other"] = Repo({"llama-Q4_0.gguf": b"GGUF of another kind" * 100})
    for name in (REPO, "a/other"):
        assert invoke("pull", name).exit_code == 0
    rows = json.loads(invoke("models", "--json").stdout)["models"]
    assert [row["name"] for row in rows] == ["pocket", f"{REPO}:MXFP4"]
    assert all(row["fits"] == "memory" and "MXFP4" in row["stored"] for row in rows)
    assert rows[1]["bytes"] == pocket_path().stat().st_size
    text = invoke("models").stdout
    assert "1 more in the cache cannot be run" in text
    everything = json.loads(invoke("models", "--all", "--json").stdout)["models"]
    assert [row["name"] for row in everything if row["problem"]] == ["a/other:Q4_0"]
    begun = tmp_path / "hf" / "hub" / "models--a--other" / "blobs" / "0.incomplete"
    begun.write_bytes(bytes(1000))
    assert "incomplete: 1000 B of a/other" in invoke("models").stdout.replace("1,000", "1000")


def test_deleting(hub: Hub, tmp_path: Path) -> None:
    del hub
    assert invoke("pull", REPO).exit_code == 0
    with pytest.raises(OptionError, match="--yes deletes it without asking"):
        invoke("models", "rm", "mxfp4")
    assert "deleted" in invoke("models", "rm", "mxfp4", "--yes").stdout
    assert not list(tmp_path.rglob("models--*/blobs/*"))
    assert invoke("pull", REPO).exit_code == 0
    assert "deleted" in invoke("models", "rm", REPO, "-y").stdout
    assert not list(tmp_path.rglob("models--*/blobs/*"))
    with pytest.raises(HubError, match="no model here is called so"):
        invoke("models", "rm", "mxfp4", "--yes")
    with pytest.raises(OptionError, match="part of the package"):
        invoke("models", "rm", "pocket", "--yes")


def test_nothing_of_the_hub_is_imported_before_it_is_asked() -> None:
    program = (
        "import sys; from penstock.hub.find import find_model; from penstock.pocket import pocket_path;"
        "find_model(pocket_path()); print('huggingface_hub' in sys.modules, 'httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"

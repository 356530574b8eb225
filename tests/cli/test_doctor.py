"""What the doctor finds, what it advises, and when it fails."""

import json
import re
import resource
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.backend import open_backend
from penstock.backend.device import DeviceSpeeds
from penstock.bench.verdict import judge_model
from penstock.cli import doctor
from penstock.cli.doctor import Status
from penstock.cli.main import app
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.errors import ModelFormatError, PenstockError, ReadError
from penstock.machine import macos
from penstock.machine.cpu import Cpu
from penstock.machine.disk import Disk
from penstock.machine.disk_speed import Measured
from penstock.machine.gpu import Gpu
from penstock.machine.memory import GroupMemory, Memory
from penstock.machine.pressure import Pressure, Stall
from penstock.pocket import pocket_path
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.machine.fake_mac import FakeMac

GIB = 1 << 30
OK, WARNING, PROBLEM = Status.OK, Status.WARNING, Status.PROBLEM
NAMES = [
    *("python", "native kernels", "processor", "memory", "memory pressure", "limits", "large pages"),
    *("disk", "disk speed", "gpu"),
]


pytestmark = pytest.mark.usefixtures("hasty")


def test_a_table_for_people() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert all(re.search(rf"^ *(ok|warning) +{name} ", result.output, re.MULTILINE) for name in NAMES)


def test_json_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an empty folder
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert report["ok"] is True
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks) == NAMES
    assert checks["disk"]["facts"]["direct"] is None
    assert checks["memory"]["facts"]["budget"] < checks["memory"]["facts"]["total"]


def test_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macos, "HERE", True)
    monkeypatch.setattr(macos, "KERNEL", FakeMac())
    monkeypatch.chdir(tmp_path)
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert list(found) == [name for name in NAMES if name != "large pages"]
    assert "Apple M3 Max" in found["processor"]
    assert "apfs" in found["disk"]


def test_a_model_and_its_disk() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json", "-m", str(pocket_path())])
    report = json.loads(result.stdout)
    assert report["verdict"]["fits"] == "resident"
    assert report["verdict"]["tokens_per_second"] > 0
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["disk"]["facts"]["direct"] is not None
    assert "a file of 128.00 MiB or more" in checks["disk speed"]["found"]
    missing = CliRunner().invoke(app, ["doctor", "-m", "/nowhere.gguf"])
    assert isinstance(missing.exception, ModelFormatError)


def test_the_verdict_says_how_a_model_fits_and_what_would_help(tmp_path: Path) -> None:
    synth(tmp_path / "m.gguf", width="tiny", ratios=(0, 4, 128, 4) * 3, mix="f16", vocab=20_000)
    checkpoint, backend = open_checkpoint(tmp_path / "m.gguf"), open_backend("cpu", 1)
    least = Engine(tmp_path / "m.gguf", memory=None, context=256, load=False, threads=1).plan.smallest
    found = {
        memory: judge_model(checkpoint, EngineOptions(memory=memory, context=256), backend)
        for memory in (least - 1, least + (2 << 20), None)
    }
    assert [verdict.fits for verdict in found.values()] == ["not", "streams", "resident"]
    texts = [" ".join(verdict.sentences) for verdict in found.values()]
    assert "needs" in texts[0]
    assert "tokens/s" in texts[1]
    assert "What would help" in texts[1]
    assert "all of it stays in memory" in texts[2]
    assert {what.split(",")[0] for what, _ in found[least + (2 << 20)].help} >= {"twice the memory"}
    assert not found[None].help  # nothing comes from the disk


def test_only_a_problem_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [doctor.judge("one", "fine"), doctor.judge("two", "odd", warning="do [this]")]
    monkeypatch.setattr(doctor, "examine", lambda *_: checks)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "→ do [this]" in result.stdout
    checks.append(doctor.judge("three", "broken", problem="mend it"))
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False


def test_python_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, doctor.PYTHON))


def test_kernels_that_were_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise PenstockError("native.so: the native kernels have not been built.\nBuild it with\n  cmake")

    monkeypatch.setattr(doctor, "instruction_set", missing)
    check = doctor.check_kernels()
    assert check.status is PROBLEM
    assert (check.found, check.advice) == (
        "native.so: the native kernels have not been built.",
        "Build it with cmake",
    )
    monkeypatch.setattr(doctor, "instruction_set", lambda: "scalar")
    assert doctor.check_kernels().status is WARNING


def test_cores() -> None:
    assert doctor.check_cpu(Cpu("CPU", 8, None, ("avx2",))).status is OK
    assert doctor.check_cpu(Cpu("CPU", 8, 16.0, ("avx2",))).status is OK
    check = doctor.check_cpu(Cpu("CPU", 8, 2.5, ("avx2",)))
    assert check.status is WARNING
    assert "--threads 2" in check.advice


def test_memory() -> None:
    plenty = Memory(64 * GIB, 60 * GIB, 0)
    assert doctor.check_memory(plenty).status is OK
    assert doctor.check_memory(plenty, resident=10 * GIB).status is OK
    check = doctor.check_memory(plenty, resident=58 * GIB)
    assert check.status is WARNING
    assert "58.00 GiB of this model" in check.advice
    limited = Memory(64 * GIB, 60 * GIB, GIB, (GroupMemory(4 * GIB, GIB, 0),))
    check = doctor.check_memory(limited)
    assert check.status is WARNING
    assert "limited to 4.00 GiB by a control group" in check.found
    assert check.facts["limit"] == 4 * GIB
    assert doctor.check_memory(limited, resident=GIB).status is OK


def test_pressure() -> None:
    assert doctor.check_pressure(None).status is WARNING
    assert doctor.check_pressure(Pressure(Stall(0.5, 1), Stall(0.0, 0))).status is OK
    assert doctor.check_pressure(Pressure(Stall(40.0, 1), Stall(0.0, 0))).status is WARNING


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert doctor.check_limits().status is WARNING
    monkeypatch.setattr(resource, "getrlimit", lambda _: (-1, -1))
    check = doctor.check_limits()
    assert check.status is OK
    assert check.found == "any number of open files, any locked memory"


@pytest.mark.parametrize(
    ("setting", "status"),
    [
        ("[always] madvise never", OK),
        ("always [madvise] never", OK),
        ("always madvise [never]", WARNING),
        (None, WARNING),
    ],
)
def test_large_pages(setting: str | None, status: Status) -> None:
    assert doctor.check_large_pages(setting).status is status


@pytest.mark.parametrize(
    ("filesystem", "free", "direct", "advice"),
    [
        ("ext4", GIB, True, ""),
        ("ext4", GIB, None, ""),
        ("ext4", GIB, False, "page cache"),
        ("ext4", GIB - 1, True, "little space"),
        ("nfs4", GIB, True, "a disk in this machine"),
        ("tmpfs", GIB, True, "memory twice"),
    ],
)
def test_disks(filesystem: str, free: int, direct: bool | None, advice: str) -> None:
    check = doctor.check_disk(Disk("8:1", "/dev/sda1", Path("/"), filesystem, False, GIB, free), direct)
    assert check.status is (WARNING if advice else OK)
    assert advice in check.advice
    assert check.facts["name"] == "/dev/sda1"


def test_disk_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = doctor.judge_speed(Measured(2e9, 0.0, cached=False), bytes_per_token=10**9)
    assert (fast.status, fast.found) == (OK, "2.00 GB/s; 0.5 s per token if no expert were in memory")
    assert doctor.judge_speed(Measured(1e8, 0.0, cached=False)).status is WARNING
    assert "measured on" in doctor.judge_speed(Measured(2e9, 0.0, cached=True)).found

    def fail(*_: object) -> Measured:
        raise ReadError("m.gguf: cannot be read: Input/output error")

    monkeypatch.setattr(doctor, "measured", fail)
    assert doctor.check_speed(Path("m.gguf"), again=False).status is PROBLEM


def test_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def speeds() -> DeviceSpeeds:
        return DeviceSpeeds(4.5e12, 55e9)

    def failing() -> DeviceSpeeds:
        raise PenstockError("the driver is too old")

    card = Gpu(0, "NVIDIA H200", 141 << 30, (9, 0), 132, "13.0")
    assert "the CPU does the work" in doctor.check_gpu([], speeds).found
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    assert "penstock[cuda]" in doctor.check_gpu([card], speeds).advice
    monkeypatch.setattr(doctor, "find_spec", lambda _: object())
    check = doctor.check_gpu([card], speeds)
    assert check.status is OK
    assert check.found.startswith("NVIDIA H200")
    assert check.found.endswith(
        "compute capability 9.0, CUDA 13.0; memory 4.50 TB/s, from the host 55.0 GB/s"
    )
    assert doctor.check_gpu([card], failing).status is WARNING
    assert doctor.check_gpu([card._replace(capability=(8, 6))], speeds).status is OK
    assert doctor.check_gpu([card._replace(capability=(7, 5))], speeds).status is WARNING

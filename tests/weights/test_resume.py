"""A conversion that was stopped goes on where it was, and nobody can tell from the result."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.weights import direct_file, gguf_writer, recode
from penstock.weights.convert import convert
from tests.weights.converting import Made, Published


class Stopped(BaseException):
    """As little of an Exception as KeyboardInterrupt is."""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces, small writes, and a note of how far it is after each."""
    _often(monkeypatch)


def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recode, "SLAB_ELEMENTS", 8000)
    monkeypatch.setattr(direct_file, "STAGE", 16 << 10)
    monkeypatch.setattr(gguf_writer, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def whole(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.gguf and mtp.gguf, made in one go."""
    folder = tmp_path_factory.mktemp("whole")
    convert(published.folder, folder / "m.gguf", "q4", mtp=folder / "mtp.gguf")
    return folder


@pytest.fixture(scope="module")
def tiny_in(tiny: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The tiny model's file by mix, made in one go."""
    folder, found = tmp_path_factory.mktemp("mixes"), {}
    for mix in ("q8_0", "q4"):
        convert(tiny.folder, folder / f"{mix}.gguf", mix)
        found[mix] = (folder / f"{mix}.gguf").read_bytes()
    return found


@pytest.fixture(scope="module")
def half(tiny: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of m.gguf in q8_0, stopped half-way."""
    folder = tmp_path_factory.mktemp("half")

    def stop(done: int, total: int, _: str) -> None:
        if done > total // 2:
            raise Stopped

    with pytest.MonkeyPatch.context() as monkeypatch:
        _often(monkeypatch)
        with pytest.raises(Stopped):
            convert(tiny.folder, folder / "m.gguf", "q8_0", progress=stop)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("share", [0.03, 0.4, 0.97])
def test_a_stopped_run_goes_on(
    published: Published, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    parted = tmp_path / "parted"
    parted.mkdir()

    def stop(done: int, total: int, _: str) -> None:
        if done > share * total:
            raise Stopped

    with pytest.raises(Stopped):
        convert(published.folder, parted / "m.gguf", "q4", mtp=parted / "mtp.gguf", progress=stop)
    assert not {"m.gguf", "mtp.gguf"} & set(names(parted)), "a file has its name before it is whole"
    left = sum(path.stat().st_size for path in parted.glob("*.part"))
    monkeypatch.undo()  # the second run need not work in the same pieces
    made: list[int] = []
    report = convert(
        published.folder,
        parted / "m.gguf",
        "q4",
        mtp=parted / "mtp.gguf",
        progress=lambda n, *_: made.append(n),
    )
    assert 0 < report.kept_bytes <= left
    assert f"{report.kept_bytes:,} bytes that an earlier run had written" in report.notes[0]
    assert names(parted) == ["m.gguf", "mtp.gguf"]
    for name in names(parted):
        assert (parted / name).read_bytes() == (whole / name).read_bytes()
    assert made == sorted(made)


def test_another_job_starts_over(tiny: Made, tiny_in: dict[str, bytes], half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path, dirs_exist_ok=True)
    report = convert(tiny.folder, tmp_path / "m.gguf", "q4")
    assert report.kept_bytes == 0
    assert (tmp_path / "m.gguf").read_bytes() == tiny_in["q4"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"nonsense", b"[]", b'{"job": 1}', b'{"job": "JOB", "safe": 1e9}', b'{"job": "JOB", "safe": -3}'],
)
def test_a_damaged_journal_starts_over(
    tiny: Made, tiny_in: dict[str, bytes], half: Path, tmp_path: Path, damage: bytes
) -> None:
    shutil.copytree(half, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "m.gguf.part.json"
    journal.write_bytes(damage.replace(b"JOB", json.loads(journal.read_bytes())["job"].encode()))
    assert convert(tiny.folder, tmp_path / "m.gguf", "q8_0").kept_bytes == 0
    assert (tmp_path / "m.gguf").read_bytes() == tiny_in["q8_0"]


def test_an_undamaged_journal_does_not(
    tiny: Made, tiny_in: dict[str, bytes], half: Path, tmp_path: Path
) -> None:
    shutil.copytree(half, tmp_path, dirs_exist_ok=True)
    assert convert(tiny.folder, tmp_path / "m.gguf", "q8_0").kept_bytes > 0
    assert (tmp_path / "m.gguf").read_bytes() == tiny_in["q8_0"]


@pytest.mark.usefixtures("often")
def test_a_full_disk_keeps_what_there_is(
    tiny: Made, tiny_in: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, real = 0, os.write

    def full(fd: int, data: bytes) -> int:
        nonlocal written
        written += len(data)
        if written > 200_000:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OptionError, match=r"m\.gguf: cannot be written: No space left on device.*goes on"):
        convert(tiny.folder, tmp_path / "m.gguf", "q8_0")
    monkeypatch.undo()
    assert convert(tiny.folder, tmp_path / "m.gguf", "q8_0").kept_bytes > 0
    assert (tmp_path / "m.gguf").read_bytes() == tiny_in["q8_0"]


KILLED = """
import sys, time
from pathlib import Path
from penstock.weights import direct_file, gguf_writer, recode
from penstock.weights.convert import convert
recode.SLAB_ELEMENTS, direct_file.STAGE, gguf_writer.SECONDS = 8000, 16 << 10, 0.0
seen = 0
def slow(done, total, name):
    global seen
    seen += 1
    if seen > 60:
        print("there", flush=True)
        time.sleep(60)
folder = Path(sys.argv[2])
convert(Path(sys.argv[1]), folder / "m.gguf", "q4", mtp=folder / "mtp.gguf", progress=slow)
"""


def test_a_killed_run_goes_on(published: Published, whole: Path, tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", KILLED, published.folder, tmp_path], stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"there\n"
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert not {"m.gguf", "mtp.gguf"} & set(names(tmp_path))
    assert convert(published.folder, tmp_path / "m.gguf", "q4", mtp=tmp_path / "mtp.gguf").kept_bytes > 0
    assert names(tmp_path) == names(whole)
    for name in names(whole):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()

"""A conversion that was stopped goes on where it was, and nobody can tell from the result."""

import json
import os
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
    monkeypatch.setattr(recode, "SLAB_ELEMENTS", 1000)
    monkeypatch.setattr(direct_file, "STAGE", 16 << 10)
    monkeypatch.setattr(gguf_writer, "SECONDS", 0.0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("share", [0.03, 0.4, 0.97])
def test_a_stopped_run_goes_on(published: Published, tmp_path: Path, share: float) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    for folder in (whole, parted):
        folder.mkdir()
    convert(published.folder, whole / "m.gguf", "q4", mtp=whole / "mtp.gguf")

    def stop(done: int, total: int, _: str) -> None:
        if done > share * total:
            raise Stopped

    with pytest.raises(Stopped):
        convert(published.folder, parted / "m.gguf", "q4", mtp=parted / "mtp.gguf", progress=stop)
    assert not {"m.gguf", "mtp.gguf"} & set(names(parted)), "a file has its name before it is whole"
    left = sum(path.stat().st_size for path in parted.glob("*.part"))
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


@pytest.mark.usefixtures("often")
def test_another_job_starts_over(tiny: Made, tmp_path: Path) -> None:
    def stop(done: int, total: int, _: str) -> None:
        if done > total // 2:
            raise Stopped

    for mix in ("q8_0", "q4"):
        convert(tiny.folder, tmp_path / f"{mix}.gguf", mix)
    with pytest.raises(Stopped):
        convert(tiny.folder, tmp_path / "m.gguf", "q8_0", progress=stop)
    report = convert(tiny.folder, tmp_path / "m.gguf", "q4")
    assert report.kept_bytes == 0
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "q4.gguf").read_bytes()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "damage",
    [b"", b"nonsense", b"[]", b'{"job": 1}', b'{"job": "JOB", "safe": 1e9}', b'{"job": "JOB", "safe": -3}'],
)
def test_a_damaged_journal_starts_over(tiny: Made, tmp_path: Path, damage: bytes) -> None:
    convert(tiny.folder, tmp_path / "whole.gguf", "q8_0")

    def stop(done: int, total: int, _: str) -> None:
        if done > total // 2:
            raise Stopped

    with pytest.raises(Stopped):
        convert(tiny.folder, tmp_path / "m.gguf", "q8_0", progress=stop)
    journal = tmp_path / "m.gguf.part.json"
    journal.write_bytes(damage.replace(b"JOB", json.loads(journal.read_bytes())["job"].encode()))
    assert convert(tiny.folder, tmp_path / "m.gguf", "q8_0").kept_bytes == 0
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.usefixtures("often")
def test_a_full_disk_keeps_what_there_is(tiny: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(tiny.folder, tmp_path / "whole.gguf", "q8_0")
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
    monkeypatch.setattr(os, "write", real)
    assert convert(tiny.folder, tmp_path / "m.gguf", "q8_0").kept_bytes > 0
    assert (tmp_path / "m.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


KILLED = """
import sys, time
from pathlib import Path
from penstock.weights import direct_file, gguf_writer, recode
from penstock.weights.convert import convert
recode.SLAB_ELEMENTS, direct_file.STAGE, gguf_writer.SECONDS = 1000, 16 << 10, 0.0
seen = 0
def slow(done, total, name):
    global seen
    seen += 1
    if seen > 200:
        print("there", flush=True)
        time.sleep(60)
convert(Path(sys.argv[1]), Path(sys.argv[2]), "q4", progress=slow)
"""


@pytest.mark.usefixtures("often")
def test_a_killed_run_goes_on(published: Published, tmp_path: Path) -> None:
    convert(published.folder, tmp_path / "whole.gguf", "q4")
    path = tmp_path / "m.gguf"
    run = subprocess.Popen([sys.executable, "-c", KILLED, published.folder, path], stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"there\n"
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert not path.exists()
    assert convert(published.folder, path, "q4").kept_bytes > 0
    assert path.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert names(tmp_path) == ["m.gguf", "whole.gguf"]

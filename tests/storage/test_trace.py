"""Traces in files."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TraceError
from penstock.storage.trace import FLUSHED_AFTER, LONGEST_LINE, TraceHeader, TraceWriter, read_trace
from tests.fuzz.mutate import mutate

HEADER = TraceHeader("5f0c", {"blk.0": 700, "blk.1": 700, "mtp.0": 900}, 16)
Request = tuple[int, int, int, list[int]]
ids = st.sets(st.integers(0, 15), min_size=1).map(sorted)
requests = st.lists(
    st.tuples(st.integers(0, 1 << 40), st.integers(0, 2), st.integers(1, 600), ids), max_size=20
)
names = st.sampled_from(["x.trace", "x.trace.gz"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace")


def write(path: Path, wanted: list[Request]) -> Path:
    with TraceWriter(path, HEADER) as writer:
        for step, block, rows, experts in wanted:
            writer.write(step, block, rows, experts)
    return path


def read_requests(path: Path) -> list[Request]:
    trace = read_trace(path)
    assert trace.header == HEADER
    columns = trace.steps.tolist(), trace.blocks.tolist(), trace.rows.tolist(), trace.requests()
    return [(*rest, [key - 16 * rest[1] for key in keys]) for *rest, keys in zip(*columns, strict=True)]


@given(names, requests)
def test_what_is_written_is_read(folder: Path, name: str, wanted: list[Request]) -> None:
    path = write(folder / name, wanted)
    assert read_requests(path) == wanted
    assert read_trace(path).notes == ()


def test_the_format(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [(0, 2, 5, [1, 4]), (1, 0, 1, [15])])
    header, first, second = path.read_text().splitlines()
    assert json.loads(header) == {
        "penstock_trace": 1,
        "model": "5f0c",
        "blocks": ["blk.0", "blk.1", "mtp.0"],
        "experts": 16,
        "expert_bytes": {"blk.0": 700, "blk.1": 700, "mtp.0": 900},
    }
    assert (first, second) == ("[0,2,5,[1,4]]", "[1,0,1,[15]]")
    trace = read_trace(path)
    assert trace.keys.tolist() == [33, 36, 15]
    assert trace.header.total_bytes == 16 * 2300
    assert write(tmp_path / "t.gz", []).read_bytes()[:2] == b"\x1f\x8b"


@pytest.mark.parametrize("name", ["t", "t.gz"])
def test_a_killed_writer_leaves_what_it_had(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    wanted: list[Request] = [(n, n % 3, 1, [n % 16]) for n in range(2 * FLUSHED_AFTER + 100)]
    writer = TraceWriter(path, HEADER)
    assert read_requests(path) == []
    for request in wanted:
        writer.write(*request)
    left = path.read_bytes()  # as the disk would have it if the process ended here
    (tmp_path / f"left.{name}").write_bytes(left)
    found = read_requests(tmp_path / f"left.{name}")
    assert len(found) >= 2 * FLUSHED_AFTER
    assert found == wanted[: len(found)]
    writer.close()
    assert read_requests(path) == wanted


@given(names, requests, st.data())
def test_any_beginning_with_the_header_can_be_read(
    folder: Path, name: str, wanted: list[Request], data: st.DataObject
) -> None:
    path = folder / name
    with TraceWriter(path, HEADER) as writer:
        header = path.stat().st_size
        for request in wanted:
            writer.write(*request)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(header, len(whole)))])
    found = read_requests(path)
    assert found == wanted[: len(found)]


def test_a_lost_end_is_mentioned(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [(0, 0, 1, [1]), (0, 1, 1, [2])])
    path.write_bytes(path.read_bytes()[:-4])
    trace = read_trace(path)
    assert trace.keys.tolist() == [1]
    assert trace.notes == ("line 3 is cut off and was left out",)


GOOD: dict[str, Any] = {
    "penstock_trace": 1,
    "model": "f",
    "blocks": ["a", "b"],
    "experts": 4,
    "expert_bytes": {"a": 10, "b": 10},
}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[0, 0, 1, [2, 1]]", r"ids are \[2, 1\], expected ascending numbers below 4"),
        ("[0, 0, 1, [1, 1]]", "expected ascending"),
        ("[0, 0, 1, [4]]", "below 4"),
        ("[0, 0, 1, [-1, 2]]", "below 4"),
        ("[0, 0, 1, []]", r"ids are \[\], expected a list of whole numbers"),
        ("[0, 0, 1, [true]]", "whole numbers"),
        ("[0, 0, 1, [1.0]]", "whole numbers"),
        ("[0, 0, 1, 5]", "whole numbers"),
        ("[0, 2, 1, [1]]", "block is 2, expected a whole number from 0 to 1"),
        ("[-1, 0, 1, [1]]", "step is -1"),
        ("[0, 0, 0, [1]]", "rows is 0, expected a whole number from 1"),
        ("[true, 0, 1, [1]]", "step is True"),
        ("[0, 0, 1]", r"expected \[step, block, rows, \[ids\]\]"),
        ("{}", "expected .step"),
        ("", "not valid JSON"),
        ("[0, 0, 1, [1]] x", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[0, 0, 1, [" + "9" * 10_000 + "]]", "not valid JSON"),
        ("[0, 0, 1, [1" + " " * LONGEST_LINE + "]]", "longer than 1,048,576 bytes"),
    ],
)
def test_bad_requests(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t"
    path.write_text(f"{json.dumps(GOOD)}\n[0, 0, 1, [1]]\n{line}\n[0, 1, 1, [1]]\n")
    with pytest.raises(TraceError, match=f"{re.escape(str(path))}: line 3: .*{message}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"penstock_trace": 2}, "version 2, expected 1"),
        ({"model": None}, "model is None"),
        ({"blocks": []}, "expected 1 to"),
        ({"blocks": ["a", "a"]}, "different names"),
        ({"blocks": [1, 2]}, "expected names"),
        ({"blocks": "ab"}, "expected names"),
        ({"experts": 0}, "experts is 0"),
        ({"experts": "4"}, "experts is '4'"),
        ({"expert_bytes": {"a": 10}}, "must name every block and no other"),
        ({"expert_bytes": {"a": 10, "b": 10, "c": 10}}, "must name every block and no other"),
        ({"expert_bytes": [10, 10]}, "must name every block"),
        ({"expert_bytes": {"a": 10, "b": 0}}, "expert_bytes of b is 0"),
    ],
)
def test_bad_headers(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "t"
    path.write_text(json.dumps({**GOOD, **change}) + "\n")
    with pytest.raises(TraceError, match=f"line 1: .*{message}"):
        read_trace(path)


@pytest.mark.parametrize("text", ["", "[]\n", "{}\n", '{"penstock_trace": 1, "penstock_trace": 1}\n'])
def test_what_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"the file is empty|not the beginning of a trace|appears twice"):
        read_trace(path)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no\.trace: cannot be read: No such file"):
        read_trace(tmp_path / "no.trace")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    (tmp_path / "plain.gz").write_text("plain")
    with pytest.raises(TraceError, match="cannot be read: Not a gzipped file"):
        read_trace(tmp_path / "plain.gz")
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        TraceWriter(tmp_path / "no" / "t", HEADER)
    with pytest.raises(TraceError, match="cannot be written: No space left"):
        TraceWriter(Path("/dev/full"), HEADER)


@given(names, st.binary(max_size=200), st.booleans())
def test_random_bytes(folder: Path, name: str, data: bytes, compressed: bool) -> None:
    path = folder / name
    path.write_bytes(gzip.compress(data) if compressed else data)
    with pytest.raises(TraceError):
        read_trace(path)


@given(names, requests, st.integers(0, 1 << 32), st.booleans())
def test_damaged_files(folder: Path, name: str, wanted: list[Request], seed: int, inside: bool) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        path = write(folder / name, wanted)
        if inside and name.endswith(".gz"):
            path.write_bytes(gzip.compress(mutate(gzip.decompress(path.read_bytes()), rng)))
        else:
            path.write_bytes(mutate(path.read_bytes(), rng))
        try:
            trace = read_trace(path)
        except TraceError:
            continue
        assert all(0 <= key < 16 * 3 for key in trace.keys.tolist())

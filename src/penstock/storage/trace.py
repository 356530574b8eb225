"""Which experts were needed, request by request, in a file: what the cache is replayed from.

The first line describes the model (broken here, one line in the file); each other line is a request:

    {"penstock_trace": 1, "model": "5f0c…", "blocks": ["blk.0", …], "experts": 256,
     "expert_bytes": {"blk.0": 7077888, …}}
    [step, block number, rows, [expert ids, ascending]]

A file whose name ends with .gz is compressed.
"""

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelFormatError, TraceError
from penstock.storage.policies import Key
from penstock.weights.safetensors_reader import parse_json

VERSION: Final = 1
FLUSHED_AFTER: Final = 1 << 10  # requests; a killed process loses no more
LONGEST_LINE: Final = 1 << 20
MOST_BLOCKS: Final = 1 << 12
MOST_EXPERTS: Final = 1 << 16
MOST_BYTES: Final = 1 << 48  # of an expert
MOST_STEPS: Final = 1 << 53
MOST_ROWS: Final = 1 << 31

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TraceHeader:
    """The model that a trace is of."""

    model: str  # fingerprint
    expert_bytes: dict[str, int]  # block → bytes of each of its experts, in the order of block numbers
    experts: int  # per block

    @property
    def block_bytes(self) -> list[int]:
        """Bytes of an expert, by block number."""
        return list(self.expert_bytes.values())

    @property
    def total_bytes(self) -> int:
        """All experts of all blocks."""
        return self.experts * sum(self.expert_bytes.values())


@dataclass(frozen=True)
class Trace:
    """What was recorded.  Request n needs `keys[starts[n] : starts[n + 1]]`."""

    header: TraceHeader
    steps: Ints  # [requests]
    blocks: Ints  # [requests] block numbers
    rows: Ints  # [requests]
    starts: Ints  # [requests + 1]
    keys: Ints  # [accesses] block number times experts per block, plus expert number
    notes: tuple[str, ...] = ()  # what a reader should know, such as a lost end

    def latest(self, accesses: int) -> "Trace":
        """The end of the trace, about so many experts long."""
        first = int(np.searchsorted(self.starts, self.starts[-1] - accesses))
        start = self.starts[first]
        return replace(
            self,
            steps=self.steps[first:],
            blocks=self.blocks[first:],
            rows=self.rows[first:],
            starts=self.starts[first:] - start,
            keys=self.keys[start:],
        )

    def requests(self) -> Iterator[list[Key]]:
        keys, starts = self.keys.tolist(), self.starts.tolist()
        for start, stop in pairwise(starts):
            yield keys[start:stop]


class TraceWriter:
    """Writes a trace.  A killed process leaves a file that can be read almost to its end.

    >>> with TraceWriter(path, TraceHeader("5f0c", {"blk.0": 7077888}, 256)) as trace:  # doctest: +SKIP
    ...     trace.write(step=0, block=0, rows=1, ids=[3, 17, 20, 99, 180, 255])
    """

    def __init__(self, path: Path, header: TraceHeader):
        self.path = path
        self._requests = 0
        try:
            self._file = _open(path, "wb")
        except OSError as error:
            raise self._failure(error) from None
        first = {
            "penstock_trace": VERSION,
            "model": header.model,
            "blocks": list(header.expert_bytes),
            "experts": header.experts,
            "expert_bytes": header.expert_bytes,
        }
        try:
            self._append(first, flush=True)
        except TraceError:
            with suppress(OSError):
                self._file.close()
            raise

    def write(self, step: int, block: int, rows: int, ids: Sequence[int]) -> None:
        """One request: at this step, `rows` rows of block number `block` need these experts, ascending."""
        self._requests += 1
        self._append([step, block, rows, list(ids)], flush=self._requests % FLUSHED_AFTER == 0)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise self._failure(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, value: object, flush: bool) -> None:
        try:
            self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")
            if flush:
                self._file.flush()
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> TraceError:
        return TraceError(f"{self.path}: cannot be written: {error.strerror or error}")


def read_trace(path: Path) -> Trace:
    """Reads a trace; every line must be in order, except that the last one may be cut off."""
    header: TraceHeader | None = None
    steps, blocks, rows, starts, keys = (array("q") for _ in range(5))
    notes = []
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}: line {number}"
        if len(line) > LONGEST_LINE:
            raise TraceError(f"{where}: longer than {LONGEST_LINE:,} bytes")
        try:
            value = parse_json(line, where)
            if header is None:
                header = _header(value)
                continue
            step, block, count, ids = _request(value, header)
        except (ModelFormatError, ValueError) as error:
            if header is not None and not line.endswith(b"\n"):
                notes.append(f"line {number} is cut off and was left out")
                break
            raise TraceError(
                str(error) if isinstance(error, ModelFormatError) else f"{where}: {error}"
            ) from None
        steps.append(step)
        blocks.append(block)
        rows.append(count)
        starts.append(len(keys))
        keys.extend(block * header.experts + expert for expert in ids)
    if header is None:
        raise TraceError(f"{path}: the file is empty")
    starts.append(len(keys))
    return Trace(header, _ints(steps), _ints(blocks), _ints(rows), _ints(starts), _ints(keys), tuple(notes))


def _ints(column: "array[int]") -> Ints:
    return np.array(column, np.int64)


def _open(path: Path, mode: str) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, mode)  # type: ignore[return-value]
    return open(path, mode)


def _lines(path: Path) -> Iterator[bytes]:
    """Lines with their ends.  One without end was cut off."""
    try:
        with _open(path, "rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                yield line
    except EOFError:  # the compressed data stops in the middle
        yield b""
    except (OSError, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise TraceError(f"{path}: cannot be read: {reason}") from None


def _header(value: Any) -> TraceHeader:
    if not isinstance(value, dict) or "penstock_trace" not in value:
        raise ValueError("not the beginning of a trace")
    if value["penstock_trace"] != VERSION:
        raise ValueError(f"version {value['penstock_trace']!r:.20}, expected {VERSION}")
    model, blocks, sizes = (value.get(name) for name in ("model", "blocks", "expert_bytes"))
    if not isinstance(model, str):
        raise ValueError(f"model is {model!r:.40}, expected a fingerprint")
    if not isinstance(blocks, list) or not all(isinstance(block, str) for block in blocks):
        raise ValueError(f"blocks is {blocks!r:.40}, expected names")
    if not 1 <= len(blocks) == len(set(blocks)) <= MOST_BLOCKS:
        raise ValueError(f"blocks are {blocks!r:.40}, expected 1 to {MOST_BLOCKS:,} different names")
    if not isinstance(sizes, dict) or sizes.keys() != set(blocks):
        raise ValueError("expert_bytes must name every block and no other")
    expert_bytes = {
        block: _whole(sizes[block], f"expert_bytes of {block:.40}", 1, MOST_BYTES) for block in blocks
    }
    return TraceHeader(model, expert_bytes, _whole(value.get("experts"), "experts", 1, MOST_EXPERTS))


def _request(value: Any, header: TraceHeader) -> tuple[int, int, int, list[int]]:
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError("expected [step, block, rows, [ids]]")
    step = _whole(value[0], "step", 0, MOST_STEPS)
    block = _whole(value[1], "block", 0, len(header.expert_bytes) - 1)
    rows = _whole(value[2], "rows", 1, MOST_ROWS)
    ids = value[3]
    if not isinstance(ids, list) or not ids or not all(type(expert) is int for expert in ids):
        raise ValueError(f"ids are {ids!r:.40}, expected a list of whole numbers")
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= header.experts:
        raise ValueError(f"ids are {ids!r:.40}, expected ascending numbers below {header.experts:,}")
    return step, block, rows, ids


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r:.40}, expected a whole number from {low} to {high:,}")
    return value

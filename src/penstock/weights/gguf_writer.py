"""Writes GGUF v3 in one pass: the directory is laid out first, then the data streams through.

While it is made a file is `NAME.part`, beside which `NAME.part.json` says how far it is good; it gets its name when
it is whole.  A run that is killed leaves both, and the next one that is to write the same goes on from there.
"""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import OptionError
from penstock.weights.direct_file import DirectFile
from penstock.weights.gguf_header import Bytes, Chunks, Piece, PlannedTensor, header_of, padding

__all__ = ["Chunks", "GGUFPart", "Piece", "PlannedTensor", "header_of", "write_gguf"]

AHEAD: Final = 3  # pieces made while another is written
SECONDS: Final = 5.0  # between two notes of how far a file is


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Iterable[PlannedTensor],
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes one file; on failure nothing is left.  Plain ints are stored as u32 (u64 when larger), floats as f32;
    give a numpy scalar for another width.  `progress` is called with the number of tensor bytes just written."""
    part = GGUFPart(path, metadata, list(tensors))
    try:
        part.write(lambda count, _: progress(count))
        part.finish()
    except BaseException:
        part.discard()
        raise


def write_outline(path: Path, metadata: Mapping[str, Any], tensors: Iterable[PlannedTensor]) -> None:
    """Writes only the header, before a hole in place of the tensors: the size of a model, and nothing on the disk."""
    planned = list(tensors)
    header = header_of(metadata, planned)
    data = sum(tensor.nbytes + padding(tensor.nbytes) for tensor in planned)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + data)


class GGUFPart:
    """A file in the making.  `job` says what its bytes follow from, beside the header: where it is given, and an
    earlier run had the same, that one's bytes are used."""

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Sequence[PlannedTensor],
        job: str | None = None,
    ):
        self.path, self.tensors = path, tensors
        self.part = path.with_name(path.name + ".part")
        self.journal = path.with_name(path.name + ".part.json")
        self.header = header_of(metadata, tensors)
        self.nbytes = len(self.header) + sum(t.nbytes + padding(t.nbytes) for t in tensors)
        self.job = None if job is None else hashlib.sha256(self.header + job.encode()).hexdigest()

    def kept(self) -> int:
        """Bytes that an earlier run of the same job has left."""
        try:
            found = json.loads(self.journal.read_bytes())
            safe = found["safe"] if self.job is not None and found["job"] == self.job else 0
            return safe if type(safe) is int and 0 <= safe <= self.part.stat().st_size else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def write(self, progress: Callable[[int, str], None]) -> None:
        """Until all is there.  `progress` is called with the number of tensor bytes just written, or found, and the
        tensor.  If it fails for what the file was to hold, nothing is left; if it is interrupted, or the disk is
        full, what a run of the same job can use."""
        try:
            self._write(progress)
        except OSError as error:
            kept = f".  {self.part.name} is kept: the same command goes on from there" if self.kept() else ""
            raise OptionError(f"{self.path}: cannot be written: {error.strerror or error}{kept}") from error
        except Exception:
            self.discard()
            raise

    def finish(self) -> None:
        """The file gets its name."""
        os.replace(self.part, self.path)
        self.journal.unlink(missing_ok=True)

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def _write(self, progress: Callable[[int, str], None]) -> None:
        kept = self.kept()
        if kept == self.nbytes:
            progress(sum(tensor.nbytes for tensor in self.tensors), "")
            return
        kept, pieces = self._behind(kept, progress)
        self._note(kept)
        noted = time.monotonic()
        with DirectFile(self.part, keep=kept) as sink, closing(_made_ahead(pieces)) as made:
            try:
                for tensor, data in made:
                    sink.write(data)
                    if tensor:
                        progress(data.nbytes, tensor)
                    if self.job is not None and time.monotonic() - noted >= SECONDS:
                        self._note(sink.safe())
                        noted = time.monotonic()
            except BaseException:
                if self.job is not None:
                    self._note(sink.safe())
                raise
        assert sink.size == self.nbytes, f"{self.path}: {sink.size:,} bytes, {self.nbytes:,} planned"
        self._note(self.nbytes)

    def _behind(
        self, kept: int, progress: Callable[[int, str], None]
    ) -> tuple[int, Iterator["_TensorPiece"]]:
        """Where the last piece ends that is wholly within `kept`, and those that follow."""
        at, pieces = 0, self._pieces()
        for each in pieces:
            if at + each.piece.nbytes > kept:
                return at, chain([each], pieces)
            at += each.piece.nbytes
            if each.tensor:
                progress(each.piece.nbytes, each.tensor)
        return at, iter(())

    def _pieces(self) -> Iterator["_TensorPiece"]:
        yield _TensorPiece("", Piece.of(self.header))
        for tensor in self.tensors:
            made = 0
            for chunk in tensor.chunks():
                piece = chunk if isinstance(chunk, Piece) else Piece.of(chunk)
                made += piece.nbytes
                yield _TensorPiece(tensor.name, piece)
            if made != tensor.nbytes:
                raise AssertionError(f"{tensor.name}: {made:,} bytes were made, {tensor.nbytes:,} planned")
            if gap := padding(made):
                yield _TensorPiece("", Piece.of(bytes(gap)))

    def _note(self, safe: int) -> None:
        if self.job is None:
            return
        new = self.journal.with_name(self.journal.name + ".new")
        new.write_text(json.dumps({"job": self.job, "safe": safe}))
        os.replace(new, self.journal)


class _TensorPiece(NamedTuple):
    tensor: str  # empty: header or padding
    piece: Piece


def _made_ahead(pieces: Iterable[_TensorPiece]) -> Generator[tuple[str, Bytes], None, None]:
    """The bytes of pieces in order, a few made by other threads while one is written: two, so that one can wait for
    the disk while the other computes."""
    waiting: deque[tuple[str, Future[Bytes]]] = deque()
    with ThreadPoolExecutor(2, thread_name_prefix="gguf") as worker:
        try:
            for tensor, piece in pieces:
                waiting.append((tensor, worker.submit(piece.make)))
                if len(waiting) > AHEAD:
                    name, made = waiting.popleft()
                    yield name, made.result()
            while waiting:
                name, made = waiting.popleft()
                yield name, made.result()
        finally:
            for _, made in waiting:
                made.cancel()

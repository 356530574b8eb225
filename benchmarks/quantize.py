"""How well and how fast weights are rounded to fewer bits.

    python -m benchmarks.quantize errors [--rows 64]          against the gguf package and llama.cpp, on the same data
    python -m benchmarks.quantize speed FOLDER [--size 1GiB]  from a file to a file, and the pace of the disk
    python -m benchmarks.quantize pocket [--count 8]          the pocket model in every mix

Errors are ratios of root mean squares, ours to theirs: below 1 is better.  With an importance matrix it is the
weighted error, without one the plain error.  The importance of a column is drawn at random, e to a normal number.

The pocket model has been trained with experts in MXFP4, so that file is the yardstick, and the others are made of it.
Its importance matrix comes from conversations like those that it was trained on, but other ones.
"""

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import gguf.quants
import numpy as np
import xllamacpp
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.disk import best_bandwidth
from penstock.engine.engine import Engine
from penstock.engine.imatrix import InputCollector
from penstock.machine.cpu import read_cpu
from penstock.pocket import pocket_path
from penstock.sizes import parse_size
from penstock.weights.convert import convert
from penstock.weights.direct_file import DirectFile
from penstock.weights.gguf_reader import read_gguf
from penstock.weights.gguf_writer import PlannedTensor, write_gguf
from penstock.weights.imatrix import write_imatrix
from penstock.weights.mixes import MIXES
from penstock.weights.quants import dequantize, quantize
from penstock.weights.recode import recode
from penstock.weights.types import BF16, WeightType, by_name
from pocket.batches import encode
from pocket.data import MIXTURE, sample
from pocket.loss import compare

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

KINDS = ("Q8_0", "MXFP4", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ2_XXS", "Q5_1", "Q5_0", "Q4_0", "IQ4_NL")
COLUMNS = 4096


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────


def llamacpp_quantizer() -> Callable[[Floats, WeightType, Floats | None], Bytes]:
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def run(values: Floats, kind: WeightType, importance: Floats | None) -> Bytes:
        if importance is None and kind.name == "IQ2_XXS":  # it takes none without
            importance = np.ones(values.shape[1], np.float32)
        out: Bytes = np.empty((len(values), kind.row_bytes(values.shape[1])), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        chunk(kind.ggml_id, values.ctypes.data, out.ctypes.data, 0, *values.shape, weights)
        return out

    return run


def data(rows: int) -> Iterator[tuple[str, Floats]]:
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((rows, COLUMNS)).astype(np.float32) * np.float32(0.02)
    yield "normal", normal
    yield "heavy tails", (rng.standard_t(4, (rows, COLUMNS)) * 0.02).astype(np.float32)
    far = normal.copy()
    far[np.arange(rows)[:, None], rng.integers(0, COLUMNS, (rows, 8))] = 0.5
    yield "outliers", far
    pocket = read_gguf(pocket_path()).tensors["output.weight"]
    weights = dequantize(pocket.file.view(pocket.offset, pocket.nbytes).reshape(4096, -1), pocket.kind)
    yield "pocket's head", np.ascontiguousarray(weights.reshape(-1, COLUMNS)[:rows])


def errors(rows: int) -> None:
    theirs = llamacpp_quantizer()
    rng = np.random.default_rng(1)
    importance = np.exp(rng.standard_normal(COLUMNS)).astype(np.float32)
    table = Table(
        "type",
        "data",
        "error / rms",
        "ours / gguf",
        "ours / llama.cpp",
        "the same, weighted",
        "M/s: ours",
        "llama.cpp",
    )
    for name in KINDS:
        kind = by_name(name)
        assert kind is not None
        for label, values in data(rows):

            def error(
                raw: Bytes, weights: Floats | None, kind: WeightType = kind, x: Floats = values
            ) -> float:
                squares = (dequantize(raw, kind).astype(np.float64) - x) ** 2
                return float(np.sqrt((squares if weights is None else squares * weights).sum()))

            ours, our_speed = timed(partial(quantize, values, kind), values.size)
            other, their_speed = timed(partial(theirs, values, kind, None), values.size)
            known, their_known = quantize(values, kind, importance), theirs(values, kind, importance)
            table.add_row(
                name,
                label,
                f"{error(ours, None) / np.sqrt((values.astype(np.float64) ** 2).sum()):.5f}",
                by_gguf(values, kind, error(ours, None), error),
                ratio(error(ours, None), error(other, None)),
                ratio(error(known, importance), error(their_known, importance)),
                f"{our_speed:.1f}",
                f"{their_speed:.1f}",
            )
    Console(width=120).print(table)


def by_gguf(values: Floats, kind: WeightType, ours: float, error: Callable[[Bytes, None], float]) -> str:
    try:
        raw = gguf.quants.quantize(values.copy(), gguf.GGMLQuantizationType[kind.name])
    except NotImplementedError:
        return "–"
    return ratio(ours, error(np.ascontiguousarray(raw).view(np.uint8), None))


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.3f}" if theirs else "both exact" if not ours else "worse"


def timed(run: Callable[[], Bytes], weights: int) -> tuple[Bytes, float]:
    """What it gives, and millions of weights per second of processor time, on one thread, the best of three."""
    seconds = []
    for _ in range(3):
        begin = time.thread_time()
        found = run()
        seconds.append(time.thread_time() - begin)
    return found, weights / min(seconds) / 1e6


# ── speed ─────────────────────────────────────────────────────────────────────────────────────────────────


def speed(folder: Path, nbytes: int, kinds: list[str]) -> None:
    rows, source = nbytes // (2 * COLUMNS), folder / "source.gguf"
    threads = read_cpu().usable
    rng = np.random.default_rng(0)
    piece = quantize(rng.standard_normal((1024, COLUMNS)).astype(np.float32) * np.float32(0.02), BF16)
    chunks = [piece] * (rows // 1024)
    tensor = PlannedTensor("w", BF16, (1024 * len(chunks), COLUMNS), lambda: chunks)
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(source, {}, [tensor])
    reads, writes = best_bandwidth(source), write_speed(folder / "zeros", nbytes)
    print(f"the disk alone: reads {reads / 1e9:.2f} GB/s, writes {writes / 1e9:.2f} GB/s; {threads} threads")
    table = Table(
        "BF16 to", "seconds", "MB/s read", "MB/s written", "M weights/s", "of the disk's pace", "CPU seconds"
    )
    try:
        for name in kinds:
            kind = by_name(name)
            assert kind is not None
            info = read_gguf(source).tensors["w"]
            made = partial(recode, info, kind, threads=threads)
            output = PlannedTensor("w", kind, info.shape, made)
            forget(source)
            begin, before = time.perf_counter(), time.process_time()
            write_gguf(folder / "out.gguf", {}, [output])
            seconds, busy = time.perf_counter() - begin, time.process_time() - before
            # One disk does both, one after the other at best.
            ideal = info.nbytes / reads + output.nbytes / writes
            table.add_row(
                name,
                f"{seconds:.2f}",
                f"{info.nbytes / seconds / 1e6:.0f}",
                f"{output.nbytes / seconds / 1e6:.0f}",
                f"{info.nbytes / 2 / seconds / 1e6:.0f}",
                f"{ideal / seconds:.2f}",
                f"{busy:.1f}",
            )
            (folder / "out.gguf").unlink()
    finally:
        source.unlink()
    Console(width=100).print(table)


def write_speed(path: Path, nbytes: int) -> float:
    block = np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)
    begin = time.perf_counter()
    with DirectFile(path) as sink:
        for _ in range(nbytes // block.size):
            sink.write(block)
    seconds = time.perf_counter() - begin
    path.unlink()
    return nbytes / seconds


def forget(path: Path) -> None:
    """What the page cache has of a file: it is to be read from the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


# ── the pocket model ──────────────────────────────────────────────────────────────────────────────────────


def pocket(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        matrix = folder / "imatrix.gguf"
        with Engine(pocket_path(), load=False, draft="off") as engine:
            rng = Random("imatrix")
            ids = [
                token
                for _ in range(24)
                for skill in MIXTURE
                for token in encode(sample(skill, rng, length=500), engine.tokenizer).ids
            ]
            collector = InputCollector(engine)
            for _ in collector.read(ids, 512):
                pass
            write_imatrix(collector.imatrix(["conversations"]), matrix)
        files = [pocket_path()]
        for mix in MIXES:
            for imatrix in (None, matrix) if mix.startswith("q") and mix != "q8_0" else (None,):
                files.append(folder / f"{mix}{' + imatrix' if imatrix else ''}")
                convert(pocket_path(), files[-1], mix, imatrix=imatrix)
        Console(width=100).print(compare(files, count))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantize")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("errors", help="against the gguf package and llama.cpp")
    one.add_argument("--rows", type=int, default=64, help=f"of {COLUMNS} weights")
    two = commands.add_parser("speed", help="from a file to a file")
    two.add_argument("folder", type=Path, help="on the disk to be measured")
    two.add_argument("--size", default="1GiB", help="of the file that is read")
    two.add_argument("--types", default=",".join(KINDS[:8]).lower(), help="to which it is rounded")
    three = commands.add_parser("pocket", help="the pocket model in every mix")
    three.add_argument("--count", type=int, default=8, help="conversations per skill")
    options = parser.parse_args()
    if options.command == "errors":
        errors(options.rows)
    elif options.command == "speed":
        speed(options.folder, parse_size(options.size, "--size"), options.types.upper().split(","))
    else:
        pocket(options.count)


if __name__ == "__main__":
    main()

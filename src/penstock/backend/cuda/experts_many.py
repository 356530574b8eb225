"""A layer's experts for up to 32 rows, more than `few_rows`, as typed calls of kernels/experts_many.cu.

Warps of few rows (experts.py) meet in shared memory to add up; here nobody waits for anybody, and sums go through the
second-level cache.  Their order is the same, and so are a row's bits.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.experts import log_slices
from penstock.backend.cuda.inputs import (
    DIGITS,
    FLOAT,
    INT,
    PIECE,
    VOID,
    DigitVectors,
    Image,
    address,
)
from penstock.backend.cuda.launch import Kernel, module
from penstock.backend.cuda.layouts import CELL, LAYOUTS
from penstock.backend.cuda.memory import Workspace
from penstock.backend.cuda.routing import MANY, Router, RoutingArgument, jobs_dtype
from penstock.backend.cuda.weights import Packed, iq2_xxs_grid
from penstock.weights import types
from penstock.weights.types import WeightType

_PIECES, _MAX_CELLS = 32, 32  # of experts_many.cu
_SHARERS = 4  # warps with cells side by side, whose weights are copied together
_ROUTE_THREADS = 12 * 32  # MAX_EXPERTS of routing.cuh
_WIDE_GRID = 1 << 16  # the IQ2_XXS grid in shared memory, at a multiple of its size
_NARROW_GRID = 256 * 8 * 8  # the same with fewer copies, for cards that have less
_BARRIERS, _RESERVED = 1024, 1024  # reserved: before a block's own shared memory
# Warps of a multiprocessor (more have been slower), and tiles that are asked for at a time
_SHAPES = {
    types.IQ2_XXS: (16, 3),
    types.Q2_K: (16, 3),
    types.Q4_K: (16, 2),
    types.MXFP4: (16, 2),
    types.Q8_0: (16, 1),
    types.Q6_K: (16, 1),
}


class _Route(ctypes.Structure):
    _fields_ = (
        ("routing", RoutingArgument), ("places", VOID), ("chosen", VOID), ("jobs", VOID), ("pairs", VOID),
        ("counter", VOID), ("rows", INT),
    )  # fmt: skip


class _Pass(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("grid", VOID), ("jobs", VOID), ("digits", VOID * _PIECES), ("parts", VOID),
        ("tiles", INT), ("cells", INT), ("room", INT), ("blocks", INT), ("of_vectors", INT), ("log_piece", INT),
        ("row_bytes", INT), ("cell_bytes", INT), ("plane_bytes", INT),
    )  # fmt: skip


class _Passes(ctypes.Structure):
    _fields_ = (
        ("shared", _Pass), ("routed", _Pass), ("sharers", INT), ("ring_bytes", INT), ("shared_stages", INT),
        ("stages", INT), ("stage_bytes", INT), ("first", INT),
    )  # fmt: skip


class _Vectors(ctypes.Structure):
    _fields_ = (("parts", VOID), ("digits", VOID), ("digit_scales", VOID), ("room", INT), ("limit", FLOAT))


class _Activate(ctypes.Structure):
    _fields_ = (
        ("routed", _Vectors), ("shared", _Vectors), ("pairs", VOID), ("scales", VOID * _PIECES),
        ("cells", INT), ("log_slices", INT), ("tiles", INT), ("width", INT), ("count", INT), ("log_piece", INT),
    )  # fmt: skip


class _Sum(ctypes.Structure):
    _fields_ = (
        ("jobs", VOID), ("pairs", VOID), ("parts", VOID), ("scales", VOID), ("shared_parts", VOID),
        ("shared_scales", VOID), ("out", VOID), ("cells", INT), ("log_slices", INT), ("room", INT),
        ("tiles", INT), ("width", INT), ("rows", INT), ("count", INT), ("ahead", VOID), ("ahead_bytes", INT),
    )  # fmt: skip


def _floats(hidden: int, width: int) -> tuple[int, int]:
    """What 256 columns each make of an expert's weights, for one row: of gate and up, of down."""
    up = -(-hidden // CELL) * 2 * (-(-width // 16) * 16)
    return up, -(-width // CELL) * (-(-hidden // 16) * 16)


def parts_floats(hidden: int, width: int, count: int) -> int:
    """Numbers that a row needs between the launches: for its experts and the shared one."""
    return (count + 1) * max(_floats(hidden, width))


def many_memory(
    workspace: Workspace, rows: int, count: int, hidden: int, width: int
) -> tuple[DigitVectors, torch.Tensor]:
    """What `ManyExperts` needs: activations, and room between its launches."""
    acts = workspace.once(("acts", rows, count, width), lambda: DigitVectors(rows * count, width, 64))
    return acts, workspace.take("expert parts", parts_floats(hidden, width, count))[:rows].view(-1)


@dataclass
class _Launch:
    kernel: Kernel
    grid: int | tuple[int, ...]
    threads: int
    argument: ctypes.Structure

    def launch(self, overlap: bool) -> None:
        self.kernel.launch(self.grid, self.threads, (self.argument,), overlap)


class ManyExperts:
    """out [rows, hidden] = the routed experts' outputs, weighted, plus the shared expert's.

    images      rows in pieces of the same size, but for the last, with digits
    parts       float32, at least rows · `parts_floats`: nobody else's while this runs
    shared      the shared expert's down, Q8_0, and its inputs: vectors: rows
    shared_up   its gate and up, Q8_0, where those inputs are to be made here: the router's logits then come from a
                kernel that is `late`, behind the images
    places      int32 [experts], where each lies among the weights; −1: it is left out
    ahead       what the next kernel reads that does not come from this one, to be brought nearer meanwhile
    """

    def __init__(
        self, gate_up: Packed, down: Packed, router: Router, images: Sequence[Image], acts: DigitVectors,
        out: torch.Tensor, parts: torch.Tensor, limit: float = 10.0,
        shared: tuple[Packed, DigitVectors] | None = None, shared_up: Packed | None = None,
        shared_limit: float = 10.0, places: torch.Tensor | None = None, ahead: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, count, piece = sum(image.rows for image in images), router.count, min(images[0].rows, PIECE)
        if len(images) > 1 and piece & (piece - 1):
            raise ValueError(f"pieces of {piece} rows: not a power of two")
        if not all(image.forms & DIGITS for image in images):
            raise ValueError("experts want their inputs as digits")
        if down.cells > _MAX_CELLS:
            raise ValueError(f"experts of up to {_MAX_CELLS * CELL} rows, not {gate_up.rows}")
        log_piece, room, jobs = (piece - 1).bit_length(), rows * count, address(router.jobs)
        if parts.numel() < rows * parts_floats(down.rows, gate_up.rows, count):
            raise ValueError(f"{parts.numel():,} numbers between launches are too few for {rows} rows")
        shared_parts = parts[room * max(_floats(down.rows, gate_up.rows)) :]
        self._launches: list[_Launch] = []
        source = module("experts_many.cu")

        pairs = torch.zeros(room, dtype=torch.int32, device="cuda")
        route = _Route(
            router.argument(), address(places), address(router.chosen), jobs, address(pairs),
            address(router.counter), rows,
        )  # fmt: skip
        self._launches.append(_Launch(source.kernel("experts_route"), rows, _ROUTE_THREADS, route))

        columns = images[0].columns
        digits = [address(each) for image in images for each in image.data]
        planes = (2 * (columns + 32), CELL, columns + 32)
        all_rows, beside = None if shared is None else _jobs_of_all(rows), None
        if shared_up is not None and all_rows is not None:
            beside = _pass(
                shared_up, 2 * shared_up.tiles, all_rows, digits, shared_parts, rows, log_piece, planes
            )
            # The last blocks start when those have ended that make the logits and the choice.
            beside.blocks = max(beside.blocks - rows - -(-router.experts // 16), beside.blocks // 2)
        routed = _pass(gate_up, 2 * gate_up.tiles, router.jobs, digits, parts, room, log_piece, planes)
        self._passes(gate_up.kind, routed, beside, first=True)

        scales = [at + images[0].piece_bytes - (columns // CELL + 1) * 32 for at in digits]
        own = _Vectors(address(parts), address(acts.digits), address(acts.scales), room, limit)
        beside_acts, more = _Vectors(), 0
        if shared is not None and shared_up is not None:
            inner, more = shared[1], rows
            at = address(shared_parts)
            beside_acts = _Vectors(at, address(inner.digits), address(inner.scales), rows, shared_limit)
        activate = _Activate(
            own, beside_acts, address(pairs), _pointers(scales), gate_up.cells, log_slices(gate_up.cells),
            gate_up.tiles, gate_up.rows, count, log_piece,
        )  # fmt: skip
        self._launches.append(
            _Launch(source.kernel("experts_activate"), (acts.cells, room + more), CELL, activate)
        )

        planes, beside, scales_too = (acts.cells * 2 * CELL, 2 * CELL, CELL), None, None
        if shared is not None and all_rows is not None:
            matrix, inner = shared
            scales_too = inner.scales
            beside = _pass(
                matrix, matrix.tiles, all_rows, [address(inner.digits)], shared_parts, rows, None, planes
            )
        routed = _pass(down, down.tiles, router.jobs, [address(acts.digits)], parts, room, None, planes)
        self._passes(down.kind, routed, beside)

        total = _Sum(
            jobs, address(pairs), address(parts), address(acts.scales), address(shared_parts if shared else None),
            address(scales_too), address(out), down.cells, log_slices(down.cells),
            room, down.tiles, down.rows, rows, count, address(ahead), 0 if ahead is None else ahead.nbytes,
        )  # fmt: skip
        self._launches.append(
            _Launch(source.kernel("experts_sum"), (-(-down.rows // CELL), rows), CELL, total)
        )
        self._keep = (
            gate_up, down, router, images, acts, out, parts, pairs, all_rows, shared, shared_up, places, ahead,
        )  # fmt: skip

    def _passes(
        self, kind: WeightType, routed: _Pass, shared: _Pass | None = None, first: bool = False
    ) -> None:
        """first: gate and up"""
        warps, _ = _SHAPES[kind]
        sharers = next(n for n in (_SHARERS, 2, 1) if routed.cells % n == 0)
        shared_stage = sharers * LAYOUTS[types.Q8_0].cell_bytes
        rings, most = warps // sharers, _BARRIERS // (warps // sharers * 2 * 2 * 8)
        grid = _grid_of(kind)
        stages, stage, ring = _stages(kind, sharers, rings, most, shared_stage if shared else 0, grid)
        options = [f"-DEXPERT_FORMAT={kind.name}", f"-DPASS_WARPS={warps}"]
        options += (["-DWITH_SHARED"] if shared else []) + (["-DNARROW_GRID"] if grid == _NARROW_GRID else [])
        passes = _Passes(
            shared or _Pass(), routed, sharers, ring, min(ring // shared_stage, most), stages, stage, first
        )  # fmt: skip
        kernel = module("experts_many.cu", *options).kernel("experts_pass", _shared_bytes(rings, ring, grid))
        self._launches.append(_Launch(kernel, card().multiprocessors, 32 * (warps + 1), passes))

    def launch(self, overlap: bool = True) -> None:
        for launch in self._launches:
            launch.launch(overlap)


def _pass(
    weights: Packed, tiles: int, jobs: torch.Tensor, digits: Sequence[int], parts: torch.Tensor, room: int,
    log_piece: int | None, apart: tuple[int, int, int],
) -> _Pass:  # fmt: skip
    """log_piece: None where inputs are vectors and not pieces of rows."""
    return _Pass(
        address(weights.data), address(iq2_xxs_grid()), address(jobs), _pointers(digits), address(parts), tiles,
        weights.cells, room, card().multiprocessors, int(log_piece is None), log_piece or 0, *apart,
    )  # fmt: skip


def _grid_of(kind: WeightType) -> int:
    """Bytes of the grid in shared memory.  A wide one lies behind 64 KB of other things."""
    if kind is not types.IQ2_XXS:
        return 0
    return _WIDE_GRID if card().roomy else _NARROW_GRID


def _stages(
    kind: WeightType, sharers: int, rings: int, most: int, least: int, grid: int
) -> tuple[int, int, int]:
    """How many stages a ring has, bytes of a stage, of a ring; `least`: of a ring.  Two stages are worth more than
    many tiles to a stage: warps compute one while the other fills."""
    _, tiles = _SHAPES[kind]
    for wanted, some in (*((2, n) for n in range(tiles, 0, -1)), (1, 1)):
        stage = sharers * some * LAYOUTS[kind].cell_bytes
        for stages in range(most, wanted - 1, -1):
            ring = max(stages * stage, least)
            if _shared_bytes(rings, ring, grid) <= card().shared_limit:
                return stages, stage, ring
    raise ValueError(f"{kind.name}: many rows do not fit in a block's shared memory")


def _shared_bytes(rings: int, ring: int, grid: int) -> int:
    """Barriers, jobs, rings; a wide grid between them, where what is left before it is lost, a narrow one behind."""
    before = _BARRIERS + -(-jobs_dtype(MANY).itemsize // 128) * 128
    lost = (_WIDE_GRID - _RESERVED - before) % ring if grid == _WIDE_GRID else 0
    return before + rings * ring + grid + lost


def _pointers(addresses: Sequence[int]) -> "ctypes.Array[ctypes.c_void_p]":
    return (VOID * _PIECES)(*addresses)


def _jobs_of_all(rows: int) -> torch.Tensor:
    """All rows see expert 0: struct Jobs of routing.cuh."""
    jobs = np.zeros(1, jobs_dtype(MANY))
    firsts = range(0, rows, 4)
    jobs["count"], jobs["pairs"], jobs["vector"][0, :rows] = len(firsts), rows, np.arange(rows)
    for job, first in zip(jobs["job"][0], firsts, strict=False):
        own = range(first, min(first + 4, rows))
        job["rows"], job["first"], job["row"][: len(own)] = len(own), first, own
    return torch.from_numpy(jobs.view(np.uint8)).cuda()

"""A whole attention sublayer in one native call.

The sublayer's steps and a sequence's memory are described once; what changes from call to call is where a sequence
stands and which of its rows must wait for the step to succeed.
"""

from collections.abc import Sequence
from ctypes import addressof, c_void_p
from typing import TYPE_CHECKING

from torch import Tensor

from penstock.kernels import composed, parts
from penstock.kernels.cpu import layer, memory, parallel, structs
from penstock.kernels.cpu.library import expect, native
from penstock.kernels.cpu.ready import NOT_NATIVE, Place, Ready, at, described, place_of
from penstock.kernels.parts import CompressorRows, LayerRows, RecentRows, Rotation, Span

if TYPE_CHECKING:
    from penstock.kernels.ops import Ops


def _ops() -> "Ops":
    from penstock.kernels import cpu  # the module that has all of them, this one included

    return cpu


def _prepare(part: parts.Attention, half: int) -> Ready:
    q, sight, choice = part.queries, part.sight, part.choice
    expect(
        q.column + q.norm.shape[0] <= part.inputs.width
        and part.keys.column + part.keys.norm.shape[0] <= part.inputs.width
        and part.keys.norm.shape[0] == q.dim
        and part.output.groups * part.output.out_a.shape[1] == q.heads * q.dim,
        f"{q.q_b.info.name}: {q.heads} heads of {q.dim} do not fit the sublayer's other parts",
    )
    compressions = [each for each in (part.compression, part.index_compression) if each is not None]
    for each, dim in zip(compressions, (q.dim, q.index_dim), strict=False):
        expect(
            max(each.value_column, each.score_column) + each.ape.shape[1] <= part.inputs.width
            and each.norm.shape[0] == dim
            and each.ratio == sight.ratio,
            f"attention: a compressor of rows of {each.norm.shape[0]} every {each.ratio} tokens",
        )
    if part.index_compression is not None:
        expect(
            choice is not None
            and q.index_q_b is not None
            and choice.column + q.index_heads <= part.inputs.width
            and choice.ratio == sight.ratio
            and choice.count > 0
            and part.compression is not None,
            "attention: an indexer without its other parts",
        )
    ready = [
        part.inputs.prepared or layer._prepare_projections(part.inputs),
        q.prepared or layer._prepare_queries(q, half),
        part.keys.prepared or memory._prepare_keys(part.keys, half),
        *(each.prepared or memory._prepare_compression(each) for each in compressions),
        sight.prepared or memory._prepare_sight(sight, q.heads, q.dim, half),
        part.output.prepared or layer._prepare_output(part.output),
    ]
    part.prepared = NOT_NATIVE
    if all(each.address for each in ready):
        inputs, queries, keys, *compressors, look, output = [each.address for each in ready]
        indexer = (choice.column, choice.count) if choice is not None else (0, 0)
        steps = (inputs, queries, keys, *[*compressors, None, None][:2], look, output)
        part.prepared = described(structs.Layer(*steps, *indexer), *ready, half=half)
    return part.prepared  # type: ignore[no-any-return]


class _Series:
    """A compressor's memory of one sequence, and the native description to be filled in."""

    __slots__ = ("capacity", "frontier", "limit", "structure")

    def __init__(self, state: CompressorRows, part: parts.Compression, structure: structs.Series):
        waiting, finished = place_of(state.frontier), place_of(state.rows)
        expect(
            waiting.width == 2 * part.ape.shape[1] and finished.width == part.norm.shape[0],
            f"attention: a compressor of rows of {part.norm.shape[0]} and memory for rows of {finished.width}",
        )
        self.frontier, self.structure = state.frontier, structure
        self.capacity, self.limit = waiting.count, finished.count
        structure.frontier, structure.rows, structure.rows_kind = (
            waiting.address,
            finished.data,
            finished.kind,
        )

    def open(self, position: int, count: int) -> None:
        kept = count if count < self.capacity else self.capacity
        fresh = self.frontier.open(position + count - kept, kept)
        self.structure.fresh = None if fresh is None else fresh.data_ptr()
        self.structure.kept = kept


class _Memory:
    """One sequence's memory of one layer, described to the native code."""

    __slots__ = ("address", "limit", "place", "ratio", "series", "structure", "window")

    def __init__(self, state: LayerRows, part: parts.Attention):
        self.structure = structs.Sequence()
        self.address = addressof(self.structure)
        self.window: RecentRows = state.window
        self.place: Place = place_of(state.window)
        expect(
            self.place.width == part.keys.norm.shape[0],
            f"attention: rows of {part.keys.norm.shape[0]}, a window of rows of {self.place.width}",
        )
        self.structure.window = self.place.address
        self.ratio = max(1, part.sight.ratio)
        self.series: list[_Series] = []
        for of, each, structure in (
            (part.compression, state.compressor, self.structure.compressed),
            (part.index_compression, state.indexer, self.structure.index),
        ):
            if of is not None:
                expect(each is not None, "attention: a compressor whose sequence has no memory for it")
                assert each is not None
                self.series.append(_Series(each, of, structure))
        self.limit = min((each.limit for each in self.series), default=None)

    def open(self, start: int, count: int, position: int) -> None:
        if self.limit is not None and (position + count) // self.ratio > self.limit:
            raise ValueError(f"attention: position {position + count} is beyond {self.limit} compressed rows")
        structure = self.structure
        structure.start, structure.count, structure.position = start, count, position
        fresh = self.window.open(position, count)
        structure.fresh = None if fresh is None else fresh.data_ptr()
        for each in self.series:
            each.open(position, count)


def attention(
    x: Tensor,
    part: parts.Attention,
    rotation: Rotation,
    spans: Sequence[Span],
    states: Sequence[LayerRows],
) -> Tensor:
    cos, sin = rotation
    ready: Ready = part.prepared or _prepare(part, cos.shape[1])
    if not ready.address:
        return composed.attention(_ops(), x, part, rotation, spans, states)
    where = at(x, "attention input")
    rows, columns = x.shape
    count = len(spans)
    if not (
        columns == part.inputs.weights[0].shape[1]
        and cos.numel() == sin.numel() == rows * ready.half
        and len(states) == count
    ):
        raise ValueError(
            f"attention: input {list(x.shape)}, rotation {list(cos.shape)}, {len(states)} sequences for {count}"
        )
    places = []
    for span, state in zip(spans, states, strict=True):
        start, stop, position = span.start, span.stop, span.position
        if not (0 <= start <= stop <= rows and position >= 0):
            raise ValueError(f"attention: rows {start} to {stop} of {list(x.shape)} at {position}")
        found: _Memory = state.prepared or _describe(state, part)
        found.open(start, stop - start, position)
        places.append(found.address)
    out = ready.result(0, rows, part.output.out_b.shape[0])
    native().ps_layer_attention(
        *(ready.address, (c_void_p * count)(*places), count, where, rows),
        *(at(cos, "cos"), at(sin, "sin"), out.data_ptr(), parallel.threads()),
    )
    for state in states:
        state.window.trim()
    return out


def _describe(state: LayerRows, part: parts.Attention) -> _Memory:
    state.prepared = found = _Memory(state, part)
    return found

"""The larger ops, each made of the small ones of this module: see `penstock.kernels.composed`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from penstock.kernels import composed, parts
from penstock.kernels.parts import AllRows, LayerRows, RecentRows, Rotation, Span

if TYPE_CHECKING:
    from penstock.kernels.ops import Ops


def _ops() -> "Ops":
    from penstock.kernels import reference  # the module that has all of them, this one included

    return reference


def hyper_enter(streams: Tensor, part: parts.Hyper) -> tuple[Tensor, Tensor]:
    return composed.hyper_enter(_ops(), streams, part)


def hyper_leave(y: Tensor, streams: Tensor, mix: Tensor) -> None:
    composed.hyper_leave(_ops(), y, streams, mix)


def hyper_between(y: Tensor, streams: Tensor, mix: Tensor, part: parts.Hyper) -> tuple[Tensor, Tensor]:
    return composed.hyper_between(_ops(), y, streams, mix, part)


def project(x: Tensor, part: parts.Projections) -> Tensor:
    return composed.project(_ops(), x, part)


def queries(projected: Tensor, part: parts.Queries, rotation: Rotation) -> tuple[Tensor, Tensor | None]:
    return composed.queries(_ops(), projected, part, rotation)


def remember(projected: Tensor, part: parts.Keys, rotation: Rotation, span: Span, window: RecentRows) -> None:
    composed.remember(_ops(), projected, part, rotation, span, window)


def compress(
    projected: Tensor, part: parts.Compression, span: Span, frontier: RecentRows, rows: AllRows
) -> None:
    composed.compress(_ops(), projected, part, span, frontier, rows)


def choose(
    index_q: Tensor, projected: Tensor, part: parts.Choice, span: Span, rows: AllRows
) -> Tensor | None:
    return composed.choose(_ops(), index_q, projected, part, span, rows)


def look(
    q: Tensor,
    part: parts.Sight,
    rotation: Rotation,
    span: Span,
    window: RecentRows,
    rows: AllRows | None,
    picks: Tensor | None,
) -> None:
    composed.look(_ops(), q, part, rotation, span, window, rows, picks)


def output(heads: Tensor, part: parts.Output) -> Tensor:
    return composed.output(_ops(), heads, part)


def attention(
    x: Tensor,
    part: parts.Attention,
    rotation: Rotation,
    spans: Sequence[Span],
    states: Sequence[LayerRows],
) -> Tensor:
    return composed.attention(_ops(), x, part, rotation, spans, states)


def choose_experts(x: Tensor, tokens: Tensor, part: parts.Routing) -> tuple[Tensor, Tensor]:
    return composed.choose_experts(_ops(), x, tokens, part)

"""Structures that native entry points read, field by field as in the C++ files."""

from ctypes import Structure, c_float, c_int64, c_void_p


def _fields(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class Ring(Structure):
    """ps_ring of rows.h"""

    _fields_ = (*_fields(c_void_p, "data"), *_fields(c_int64, "capacity", "width", "kind"))


class Hyper(Structure):
    """ps_hyper of hyper.cpp"""

    _fields_ = (
        *_fields(c_void_p, "fn", "base", "scale", "norm"),
        *_fields(c_int64, "streams", "hidden", "iterations"),
        *_fields(c_float, "eps", "rms_eps"),
    )


class Projections(Structure):
    """ps_projections of steps.h"""

    _fields_ = (*_fields(c_void_p, "weights"), *_fields(c_int64, "count", "width"))


class Queries(Structure):
    """ps_queries of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "q_b", "index_q_b", "norm"),
        *_fields(c_int64, "column", "rank", "heads", "dim", "index_heads", "index_dim", "half"),
        *_fields(c_float, "eps"),
    )


class Keys(Structure):
    """ps_keys of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "norm"),
        *_fields(c_int64, "column", "dim", "half"),
        *_fields(c_float, "eps"),
    )


class Compressor(Structure):
    """ps_compressor of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "ape", "norm", "speed"),
        *_fields(c_int64, "value_column", "score_column", "width", "dim", "half", "ratio"),
        *_fields(c_float, "eps"),
    )


class Index(Structure):
    """ps_index of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "q", "gates"),
        *_fields(c_int64, "gates_stride", "tokens", "heads", "dim"),
        *_fields(c_void_p, "rows"),
        *_fields(c_int64, "rows_stride", "rows_kind", "row_count"),
        *_fields(c_void_p, "visible"),
        *_fields(c_int64, "position", "ratio", "count", "width"),
        *_fields(c_void_p, "picks"),
    )


class Attention(Structure):
    """ps_attention of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "sinks"),
        *_fields(c_int64, "heads", "dim", "window_size", "ratio", "half"),
    )


class AttentionCall(Structure):
    """ps_attention_call of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "q"),
        *_fields(c_int64, "tokens", "position"),
        *_fields(c_void_p, "ring", "fresh"),
        *_fields(c_int64, "begun"),
        *_fields(c_void_p, "rows"),
        *_fields(c_int64, "rows_stride", "rows_kind", "row_count"),
        *_fields(c_void_p, "visible", "picks"),
        *_fields(c_int64, "picks_width"),
        *_fields(c_void_p, "cos", "sin", "out"),
    )


class Layer(Structure):
    """ps_layer of layer.cpp"""

    _fields_ = (
        *_fields(c_void_p, "inputs", "queries", "keys", "compressor", "index_compressor", "sight", "output"),
        *_fields(c_int64, "gates_column", "choice"),
    )


class Series(Structure):
    """ps_series of layer.cpp"""

    _fields_ = (
        *_fields(c_void_p, "frontier", "fresh"),
        *_fields(c_int64, "kept"),
        *_fields(c_void_p, "rows"),
        *_fields(c_int64, "rows_kind"),
    )


class Sequence(Structure):
    """ps_sequence of layer.cpp"""

    _fields_ = (
        *_fields(c_int64, "start", "count", "position"),
        *_fields(c_void_p, "window", "fresh"),
        ("compressed", Series),
        ("index", Series),
    )


class Output(Structure):
    """ps_output of steps.h"""

    _fields_ = (*_fields(c_void_p, "out_a", "out_b"), *_fields(c_int64, "groups"))


class Router(Structure):
    """ps_router of router.cpp"""

    _fields_ = (
        *_fields(c_void_p, "gate", "bias", "table"),
        *_fields(c_int64, "count", "normalize"),
        *_fields(c_float, "scale"),
    )

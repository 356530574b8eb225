"""Structures that native entry points read, field by field as in the C++ headers.

`library.load` compares their sizes with the library's own.
"""

from ctypes import CFUNCTYPE, Structure, c_double, c_float, c_int64, c_void_p
from typing import Any


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


# decode(number, first, last, out): rows [first, last) of a weight as float32
Decode = CFUNCTYPE(None, c_int64, c_int64, c_int64, c_void_p)


class Weight(Structure):
    """ps_weight of products.h"""

    _fields_ = (
        *_fields(c_void_p, "data", "scale"),
        *_fields(c_int64, "type", "rows", "columns", "round_input"),
        ("decode", Decode),
        *_fields(c_int64, "number"),
        *_fields(c_void_p, "squares"),
    )


class Expert(Structure):
    """ps_expert of products.h: where the descriptions of its three weights are"""

    _fields_ = _fields(c_void_p, "gate", "up", "down")


class Ring(Structure):
    """ps_ring of rows.h"""

    _fields_ = (*_fields(c_void_p, "data"), *_fields(c_int64, "capacity", "width", "kind"))


class Hyper(Structure):
    """ps_hyper of hyper.h"""

    _fields_ = (
        *_fields(c_void_p, "fn", "base", "scale", "norm"),
        *_fields(c_int64, "streams", "hidden", "iterations"),
        *_fields(c_float, "eps", "rms_eps"),
    )


class Head(Structure):
    """ps_head of hyper.h"""

    _fields_ = (
        *_fields(c_void_p, "fn", "base", "scale", "norm"),
        *_fields(c_int64, "streams", "hidden"),
        *_fields(c_float, "eps", "rms_eps"),
    )


class Projections(Structure):
    """ps_projections of steps.h"""

    _fields_ = (*_fields(c_void_p, "weights"), *_fields(c_int64, "count", "width"))


class Queries(Structure):
    """ps_queries of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "q_b", "index_q_b", "norm"),
        *_fields(
            c_int64, "column", "rank", "heads", "dim", "index_heads", "index_dim", "half", "low_precision"
        ),
        *_fields(c_float, "eps"),
    )


class Keys(Structure):
    """ps_keys of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "norm"),
        *_fields(c_int64, "column", "dim", "half", "low_precision"),
        *_fields(c_float, "eps"),
    )


class Compressor(Structure):
    """ps_compressor of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "ape", "norm", "frequencies"),
        *_fields(c_int64, "value_column", "score_column", "width", "dim", "half", "ratio", "low_precision"),
        *_fields(c_float, "eps"),
    )


class Attention(Structure):
    """ps_attention of steps.h"""

    _fields_ = (
        *_fields(c_void_p, "sinks"),
        *_fields(c_int64, "heads", "dim", "window_size", "ratio", "half"),
    )


class Output(Structure):
    """ps_output of steps.h"""

    _fields_ = (*_fields(c_void_p, "out_a", "out_b"), *_fields(c_int64, "groups"))


class AttentionLayer(Structure):
    """ps_attention_layer of attention_layer.h"""

    _fields_ = (
        *_fields(
            c_void_p, "inputs", "queries", "keys", "compressor", "index_compressor", "attention", "output"
        ),
        *_fields(c_int64, "gates_column", "topk"),
    )


class CompressorState(Structure):
    """ps_compressor_state of attention_layer.h"""

    _fields_ = (
        *_fields(c_void_p, "frontier", "fresh"),
        *_fields(c_int64, "kept"),
        *_fields(c_void_p, "rows"),
        *_fields(c_int64, "rows_kind"),
    )


class SequenceState(Structure):
    """ps_sequence_state of attention_layer.h"""

    _fields_ = (
        *_fields(c_int64, "start", "count", "position"),
        *_fields(c_void_p, "window", "fresh"),
        ("compressed", CompressorState),
        ("index", CompressorState),
    )


class Router(Structure):
    """ps_router of router.h"""

    _fields_ = (
        *_fields(c_void_p, "gate", "bias", "table"),
        *_fields(c_int64, "count", "normalize"),
        *_fields(c_float, "scale"),
    )


class Draft(Structure):
    """ps_draft of draft.h"""

    _fields_ = (
        *_fields(
            c_void_p, "embedding", "embedding_norm", "stream_norm", "both", "of_embedding", "of_streams"
        ),
        *_fields(c_void_p, "frequencies", "attention_hyper", "experts_hyper", "attention", "kv", "keys"),
        *_fields(c_void_p, "router", "shared", "head"),
        *_fields(c_float, "limit", "shared_limit", "eps"),
    )


class StepSizes(Structure):
    """ps_step_sizes of step_bytes.h: the shapes that decide how much memory a step takes"""

    _fields_ = _fields(
        c_int64,
        *("hidden", "streams", "projected_width", "heads", "dim", "index_heads", "index_dim", "index_topk"),
        *("o_groups", "o_rank", "experts", "experts_used", "expert_width", "shared_width"),
        *("ratio", "inputs", "low_precision"),
    )


class Division(Structure):
    """ps_division of tiers.h"""

    _fields_ = (
        *_fields(c_double, "link", "disk", "call"),
        ("host", c_double * 3),
        *_fields(c_int64, "exact"),
    )


class Placement(Structure):
    """ps_placement of tiers.h"""

    _fields_ = (
        *_fields(c_void_p, "division", "slot_of", "ahead", "uses", "free"),
        *_fields(c_int64, "experts", "used", "capacity", "free_count", "ahead_count"),
        *_fields(c_void_p, "numbers", "fates"),
        *_fields(c_int64, "count", "bring", "host", "on_disk", "claimed"),
        *_fields(c_double, "ends"),
    )


class Turns(Structure):
    """ps_turns of tiers.h"""

    _fields_ = (
        *_fields(c_void_p, "sent", "answered", "arrivals", "places", "ids", "likely", "asked", "guessed"),
        *_fields(c_void_p, "weights", "x", "sum"),
        *_fields(c_void_p, "table", "placement"),
        *_fields(c_int64, "lanes", "rows", "count", "hidden", "block", "threads", "idle", "computing"),
        *_fields(c_double, "limit"),
    )


class Piece(Structure):
    """ps_piece of reader.h"""

    _fields_ = _fields(c_int64, "fd", "offset", "length", "needed", "cached", "address")


class Outcome(Structure):
    """ps_outcome of reader.h"""

    _fields_ = _fields(c_int64, "error", "piece", "offset")


class ReaderStats(Structure):
    """ps_reader_stats of reader.h"""

    _fields_ = _fields(
        c_int64, "bytes", "reads", "retries", "in_flight", "busy_ns", "active_ns", "longest_ns"
    )


# Name in C++ → its mirror.
MIRRORED: dict[str, type[Structure]] = {
    "ps_weight": Weight,
    "ps_expert": Expert,
    "ps_ring": Ring,
    "ps_hyper": Hyper,
    "ps_head": Head,
    "ps_projections": Projections,
    "ps_queries": Queries,
    "ps_keys": Keys,
    "ps_compressor": Compressor,
    "ps_attention": Attention,
    "ps_output": Output,
    "ps_attention_layer": AttentionLayer,
    "ps_compressor_state": CompressorState,
    "ps_sequence_state": SequenceState,
    "ps_router": Router,
    "ps_draft": Draft,
    "ps_step_sizes": StepSizes,
    "ps_division": Division,
    "ps_placement": Placement,
    "ps_turns": Turns,
    "ps_piece": Piece,
    "ps_outcome": Outcome,
    "ps_reader_stats": ReaderStats,
}

"""Plain torch, float32: the executable specification of every op."""

from penstock.kernels.reference.attention import attend, pool, select
from penstock.kernels.reference.experts import route, swiglu
from penstock.kernels.reference.hyper import hyper_collapse, hyper_expand, hyper_gate, hyper_mix
from penstock.kernels.reference.linear import embed, grouped_linear, linear
from penstock.kernels.reference.lowprec import hadamard, round_fp4, round_fp8
from penstock.kernels.reference.norm import rms_norm, rotate

__all__ = [
    "attend",
    "embed",
    "grouped_linear",
    "hadamard",
    "hyper_collapse",
    "hyper_expand",
    "hyper_gate",
    "hyper_mix",
    "linear",
    "pool",
    "rms_norm",
    "rotate",
    "round_fp4",
    "round_fp8",
    "route",
    "select",
    "swiglu",
]

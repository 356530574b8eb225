"""Plain torch, float32: the executable specification of every op."""

from penstock.kernels.reference.attention import attend, pool, select
from penstock.kernels.reference.experts import expert_parts, expert_sum, experts, route, swiglu
from penstock.kernels.reference.hyper import hyper_collapse, hyper_expand, hyper_gate, hyper_mix
from penstock.kernels.reference.layer import (
    attention,
    choose,
    choose_experts,
    compress,
    hyper_between,
    hyper_enter,
    hyper_leave,
    look,
    output,
    project,
    queries,
    remember,
)
from penstock.kernels.reference.linear import embed, grouped_linear, linear, linears
from penstock.kernels.reference.lowprec import hadamard, round_fp4, round_fp8
from penstock.kernels.reference.norm import angles, rms_norm, rotate

__all__ = [
    "angles",
    "attend",
    "attention",
    "choose",
    "choose_experts",
    "compress",
    "embed",
    "expert_parts",
    "expert_sum",
    "experts",
    "grouped_linear",
    "hadamard",
    "hyper_between",
    "hyper_collapse",
    "hyper_enter",
    "hyper_expand",
    "hyper_gate",
    "hyper_leave",
    "hyper_mix",
    "linear",
    "linears",
    "look",
    "output",
    "pool",
    "project",
    "queries",
    "remember",
    "rms_norm",
    "rotate",
    "round_fp4",
    "round_fp8",
    "route",
    "select",
    "swiglu",
]

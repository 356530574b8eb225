"""The op set for CPUs: native kernels in which every row is computed by itself, in one fixed order.

Torch's own products depend on how many rows they get, and its transcendental functions on where a value lies in
memory; these never do, so how a prompt is cut into chunks, who shares the batch and how many threads help cannot
change a bit of any result.  What is only selection, exact scaling or a single rounding per step is taken from the
reference, which has the same property there.

    >>> import torch
    >>> from penstock.kernels import cpu
    >>> x = torch.randn(3, 64)
    >>> torch.equal(cpu.rms_norm(x, None, 1e-6)[1:2], cpu.rms_norm(x[1:2], None, 1e-6))
    True
"""

from penstock.kernels.cpu.attention import attend, pool, select
from penstock.kernels.cpu.experts import expert_parts, expert_sum, experts, route, swiglu
from penstock.kernels.cpu.hyper import hyper_collapse, hyper_expand, hyper_gate, hyper_mix
from penstock.kernels.cpu.layer import (
    choose_experts,
    hyper_between,
    hyper_enter,
    hyper_leave,
    output,
    project,
    queries,
)
from penstock.kernels.cpu.linear import embed, grouped_linear, linear, linears
from penstock.kernels.cpu.memory import choose, compress, look, remember
from penstock.kernels.cpu.norm import angles, rms_norm, rotate
from penstock.kernels.cpu.sublayer import attention
from penstock.kernels.reference.lowprec import hadamard, round_fp4, round_fp8

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

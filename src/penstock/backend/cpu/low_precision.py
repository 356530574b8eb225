"""Rounding where DeepSeek's own inference code rounds, whose weights were trained with it (`simulate_low_precision`).

The inputs of the linears that are FP8 or FP4 in the official checkpoint (groups of 128), the non-rotary part of
key/value rows (FP8, groups of 64), and the indexer's queries and rows (Hadamard, then FP4, groups of 32).  Kernels do
it (native/low_precision.h) where what is described to them says so, and all of that is said here.
"""

from typing import TYPE_CHECKING, Final

from penstock.backend.cpu.weights import CpuExpert, CpuWeight
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.backend.cpu.deepseek_v4.attention import CpuAttention
    from penstock.backend.cpu.deepseek_v4.ends import CpuJoin
    from penstock.backend.cpu.deepseek_v4.experts import CpuExperts

LINEAR_GROUP: Final = 128
KEY_ROWS, INDEX_ROWS = 1, 2  # what a compressor's rows are


def round_inputs(*weights: CpuWeight) -> None:
    for weight in weights:
        weight.described.round_input = LINEAR_GROUP


def round_expert(expert: CpuExpert) -> None:
    round_inputs(*expert.weights)


def round_experts(experts: "CpuExperts") -> None:
    """What enters `down` is rounded with the routing weight in it, so terms have their weight already."""
    experts.weighted_terms = True


def round_join(join: "CpuJoin") -> None:
    """Both inputs are rounded by themselves, also where one matrix reads them side by side."""
    join.round_group = LINEAR_GROUP


def round_attention(attention: "CpuAttention") -> None:
    indexer = attention.spec.indexer
    if indexer is not None and indexer.dim & (indexer.dim - 1):
        raise OptionError(
            f"simulate_low_precision needs an indexer width that is a power of two, not {indexer.dim}"
        )
    round_inputs(attention.q_a, attention.kv, attention.out_b)
    for described in (attention.queries, attention.keys, attention.keys_alone):
        described.structure.low_precision = 1
    for compressor, rows in ((attention.compressor, KEY_ROWS), (attention.index_compressor, INDEX_ROWS)):
        if compressor is not None:
            compressor.structure.low_precision = rows

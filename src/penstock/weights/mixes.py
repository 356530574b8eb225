"""Which type every tensor gets: the mixes of `penstock quantize` and `penstock synth`.

    BASE[,WHAT=TYPE…]         q2        mxfp4,output=q8_0        q4,experts=q3_k,blk.[0-2].*=q8_0

A mix gives matrices types by what they are for.  What is one-dimensional is always F32 and hash tables are always
I32, because llama.cpp takes no other type.

q2, q2-q4 and q4 are the mixes that antirez publishes for ds4: large matrices in Q8_0, the small ones that steer the
model in F16, routed experts in few bits; q2-q4 has those of the last six layers in Q4_K.  q2_k, q3, q5 and q6 are the
same with other experts.

mxfp4 is the layout llama.cpp calls MXFP4_MOE; with a published checkpoint its experts are the published numbers, bit
for bit.  q8_0 puts the embedding and the head in Q8_0 too, as llama.cpp's own q8_0 files do.  Compressors, routers
and `indexer.proj` stay in BF16 in both, in which the published checkpoints hold them: they decide which experts and
which rows of the past a token sees, and are one weight in eight hundred.  mxfp4_q8_0 is the smallest of these: for
models in which embedding, compressors and mixing are a large part of the whole.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from penstock.errors import OptionError
from penstock.weights.layout import Role, TensorPlan
from penstock.weights.quants import QUANTIZABLE
from penstock.weights.types import (
    BF16,
    F16,
    F32,
    I32,
    IQ2_XXS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_0,
    WeightType,
    by_name,
)

Types = Mapping[str, WeightType]  # by leaf name where one is listed, else by role

# llama.cpp's number for a file most of whose weights have this type.
FILE_TYPES: Final = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "Q6_K": 18,
    "IQ2_XXS": 19,
    "IQ4_NL": 25,
    "BF16": 32,
    "MXFP4": 38,
}

EXPERTS: Final = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
BIASES: Final = ("attn_compressor_ape", "indexer_compressor_ape")  # of positions in a compressor's window

# What a user may name: roles or leaves.
NAMED: Final[dict[str, tuple[str, ...]]] = {
    "experts": EXPERTS,
    "gate": ("ffn_gate_exps",),
    "up": ("ffn_up_exps",),
    "down": ("ffn_down_exps",),
    "shared": (Role.SHARED,),
    "attention": (Role.ATTENTION,),
    "indexer": (Role.INDEXER, "indexer.attn_q_b"),
    "compressor": (Role.COMPRESSOR,),
    "router": (Role.ROUTER,),
    "embedding": (Role.EMBEDDING,),
    "output": (Role.HEAD,),
    "mixing": (Role.MIXING, *BIASES),
    "draft": (Role.DRAFT,),
}


@dataclass(frozen=True, slots=True)
class Mix:
    """Types by what a matrix is for; `late` are those of the last `late_layers` layers, `patterns` those of tensors
    whose whole name matches, the last one deciding."""

    name: str
    types: Types
    late: Types | None = None
    late_layers: int = 0
    patterns: tuple[tuple[str, WeightType], ...] = ()

    @property
    def file_type(self) -> int:
        """general.file_type"""
        return FILE_TYPES[self.types["ffn_gate_exps"].name]

    def target(self, plan: TensorPlan, layers: int) -> WeightType:
        """The type that the mix wants for a tensor of a model with so many layers, whether or not its rows fit."""
        if plan.role is Role.HASH_TABLE:
            return I32
        if len(plan.shape) == 1:
            return F32
        for pattern, kind in reversed(self.patterns):
            if fnmatchcase(plan.name, pattern):
                return kind
        types = self.types
        if self.late is not None and (block := re.match(r"blk\.(\d+)\.", plan.name)):
            types = self.late if int(block[1]) >= layers - self.late_layers else types
        return types.get(plan.leaf) or types[plan.role]


def _published(gate: WeightType, up: WeightType, down: WeightType) -> Types:
    """Large matrices Q8_0, the small ones that steer the model F16; routed experts as given."""
    halves = (Role.EMBEDDING, Role.COMPRESSOR, Role.INDEXER, Role.ROUTER, Role.MIXING)
    return {
        **dict.fromkeys((Role.ATTENTION, Role.SHARED, Role.HEAD, Role.DRAFT), Q8_0),
        **dict.fromkeys(halves, F16),
        **dict(zip(EXPERTS, (gate, up, down), strict=True)),
    }


def _by_size(
    experts: WeightType, linear: WeightType, ends: WeightType, small: WeightType, mixing: WeightType = F32
) -> Types:
    return {
        **dict.fromkeys(EXPERTS, experts),
        **dict.fromkeys((Role.ATTENTION, Role.SHARED, Role.DRAFT, "indexer.attn_q_b"), linear),
        **dict.fromkeys((Role.EMBEDDING, Role.HEAD), ends),
        **dict.fromkeys((Role.COMPRESSOR, Role.ROUTER, Role.INDEXER), small),
        **dict.fromkeys((Role.MIXING, *BIASES), mixing),
    }


_Q2, _Q4 = _published(IQ2_XXS, IQ2_XXS, Q2_K), _published(Q4_K, Q4_K, Q4_K)

MIXES: Final[dict[str, Mix]] = {
    mix.name: mix
    for mix in (
        Mix("q2", _Q2),
        Mix("q2-q4", _Q2, late=_Q4, late_layers=6),
        Mix("q2_k", _published(Q2_K, Q2_K, Q2_K)),
        Mix("q3", _published(Q3_K, Q3_K, Q3_K)),
        Mix("q4", _Q4),
        Mix("q5", _published(Q5_K, Q5_K, Q5_K)),
        Mix("q6", _published(Q6_K, Q6_K, Q6_K)),
        Mix("mxfp4", _by_size(experts=MXFP4, linear=Q8_0, ends=BF16, small=BF16)),
        Mix("mxfp4_q8_0", _by_size(experts=MXFP4, linear=Q8_0, ends=Q8_0, small=Q8_0, mixing=F16)),
        Mix("q8_0", _by_size(experts=Q8_0, linear=Q8_0, ends=Q8_0, small=BF16)),
        Mix("bf16", _by_size(experts=BF16, linear=BF16, ends=BF16, small=BF16)),
        Mix("f16", _by_size(experts=F16, linear=F16, ends=F16, small=F16)),
        Mix("f32", _by_size(experts=F32, linear=F32, ends=F32, small=F32)),
    )
}


def mix_by_name(text: str) -> Mix:
    """The mix that `text` describes; OptionError, saying what would be one, where it describes none.

    >>> mix_by_name("q4,down=q6_k").types["ffn_down_exps"].name
    'Q6_K'
    """
    base, *changes = text.split(",")
    if "=" in base:
        base, changes = "q8_0", [base, *changes]
    if base not in MIXES:
        raise OptionError(f"mix is {base!r}, expected one of {', '.join(MIXES)}")
    mix = MIXES[base]
    if not changes:
        return mix
    types, late, patterns = dict(mix.types), dict(mix.late or {}), []
    for change in changes:
        what, separator, name = change.partition("=")
        kind = by_name(name.strip().upper())
        if not separator or kind is None or kind not in QUANTIZABLE:
            known = ", ".join(sorted(each.name.lower() for each in QUANTIZABLE))
            raise OptionError(f"mix: {change!r}, expected WHAT=TYPE with a type of {known}")
        what = what.strip()
        if what in NAMED or what == "other":
            named = {name for group in NAMED.values() for name in group}
            others = named - {
                name for each in changes for name in NAMED.get(each.partition("=")[0].strip(), ())
            }
            for place in NAMED.get(what, others):
                types[place] = kind
                if late:
                    late[place] = kind
        elif re.search(r"[.*?\[]", what):
            patterns.append((what, kind))
        else:
            raise OptionError(
                f"mix: {what!r} is neither {', '.join(NAMED)}, other nor a pattern of tensor names like blk.3.*"
            )
    return Mix(text, types, late or None, mix.late_layers, tuple(patterns))

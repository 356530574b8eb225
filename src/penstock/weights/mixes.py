"""Which type every tensor gets when a checkpoint is converted: the mixes of `penstock convert`.

What is one-dimensional is always F32 and hash tables are always I32, because llama.cpp takes no other type; the
hyper-connection matrices and the compressors' position biases are F32 too, but in the smallest mix.

q8_0 puts the embedding and the head in Q8_0 too, as llama.cpp's own q8_0 files do.  Compressors, routers and
`indexer.proj` stay in BF16, in which the published checkpoints hold them: they decide which experts and which
rows of the past a token sees, and are one weight in eight hundred.  mxfp4 is the layout llama.cpp calls
MXFP4_MOE; with a published checkpoint its experts are the published numbers, bit for bit.  mxfp4_q8_0 is the
smallest: for models in which embedding, compressors and mixing are a large part of the whole.
"""

from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError
from penstock.weights.layout import Role, TensorPlan
from penstock.weights.types import BF16, F16, F32, I32, MXFP4, Q8_0, WeightType


@dataclass(frozen=True, slots=True)
class Mix:
    """Types by what a matrix is for."""

    name: str
    experts: WeightType  # routed experts: nearly all of the bytes
    linear: WeightType  # attention, shared expert, the indexer's queries, draft projections
    ends: WeightType  # embedding and head
    small: WeightType  # compressors, router, the indexer's head weights
    file_type: int  # general.file_type, llama.cpp's number for the mix
    mixing: WeightType = F32  # hyper-connections and position biases

    def target(self, plan: TensorPlan) -> WeightType:
        """The type that the mix wants for a tensor, whether or not its rows fit."""
        if plan.role is Role.HASH_TABLE:
            return I32
        if len(plan.shape) == 1:
            return F32
        if plan.role is Role.MIXING or plan.name.endswith("_ape.weight"):
            return self.mixing
        if plan.name.endswith(".indexer.proj.weight"):
            return self.small
        return {
            Role.ROUTED: self.experts,
            Role.EMBEDDING: self.ends,
            Role.HEAD: self.ends,
            Role.COMPRESSOR: self.small,
            Role.ROUTER: self.small,
        }.get(plan.role, self.linear)


MIXES: Final[dict[str, Mix]] = {
    mix.name: mix
    for mix in (
        Mix("f32", experts=F32, linear=F32, ends=F32, small=F32, file_type=0),
        Mix("f16", experts=F16, linear=F16, ends=F16, small=F16, file_type=1),
        Mix("bf16", experts=BF16, linear=BF16, ends=BF16, small=BF16, file_type=32),
        Mix("q8_0", experts=Q8_0, linear=Q8_0, ends=Q8_0, small=BF16, file_type=7),
        Mix("mxfp4", experts=MXFP4, linear=Q8_0, ends=BF16, small=BF16, file_type=38),
        Mix("mxfp4_q8_0", experts=MXFP4, linear=Q8_0, ends=Q8_0, small=Q8_0, file_type=38, mixing=F16),
    )
}


def mix_by_name(name: str) -> Mix:
    """The mix called `name`; OptionError, listing them all, where there is none."""
    if name not in MIXES:
        raise OptionError(f"mix is {name!r}, expected one of {', '.join(MIXES)}")
    return MIXES[name]

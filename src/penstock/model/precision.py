"""The low-precision round trips that DeepSeek's inference code makes, on request.

Off, everything stays float32 between the weights and the cache.  On, three places are rounded as in the released
code, whose weights were trained with them: the inputs of the linears that are FP8 or FP4 in the official
checkpoint (groups of 128), the non-rotary part of key/value rows (FP8, groups of 64), and the indexer's queries
and rows (Hadamard, then FP4, groups of 32).  The last two are part of the ops that make those rows.
"""

from torch import Tensor

from penstock.errors import OptionError
from penstock.kernels.ops import Ops
from penstock.weights.config import AttentionKind, ModelConfig


class Precision:
    def __init__(self, config: ModelConfig, ops: Ops, simulate: bool):
        self.ops, self.simulate = ops, simulate
        sparse = any(layer.attention is AttentionKind.SPARSE for layer in config.layers)
        if simulate and sparse and config.index_dim & (config.index_dim - 1):
            raise OptionError(
                f"simulate_low_precision needs an indexer width that is a power of two, not {config.index_dim}"
            )

    def linear_input(self, x: Tensor) -> Tensor:
        return self.ops.round_fp8(x, 128) if self.simulate else x

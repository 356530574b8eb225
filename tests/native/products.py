"""Products as the library makes them."""

from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from penstock.native.library import native
from penstock.weights.tensor import Weight
from tests.backend.helpers import placed


def linears(x: Tensor, weights: Sequence[Weight], threads: int = 1, round_input: int = 0) -> list[Tensor]:
    """x [rows, in] with each of the weights → [rows, out] each"""
    ready = [placed(weight, round_input) for weight in weights]
    outs = [torch.full((len(x), weight.described.rows), torch.nan) for weight in ready]
    native().ps_products(
        *((c_void_p * len(ready))(*(weight.address for weight in ready)), len(ready)),
        *(x.data_ptr(), x.stride(0), len(x)),
        (c_void_p * len(outs))(*(out.data_ptr() for out in outs)),
        *((c_int64 * len(outs))(*(out.shape[1] for out in outs)), threads),
    )
    return outs


def linear(x: Tensor, weight: Weight, threads: int = 1, round_input: int = 0) -> Tensor:
    return linears(x, [weight], threads, round_input)[0]

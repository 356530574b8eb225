"""Products with stored weights, multiplied as they lie in the file (native/products.h)."""

from collections.abc import Sequence
from ctypes import c_int64, c_void_p

from torch import Tensor

from penstock.kernels.cpu import decoded, parallel
from penstock.kernels.cpu.library import expect, floats, native
from penstock.kernels.cpu.stored import address, stored_weight
from penstock.kernels.reference.linear import embed
from penstock.weights.tensor import Weight

__all__ = ["embed", "grouped_linear", "linear", "linears"]


def linear(x: Tensor, weight: Weight) -> Tensor:
    return linears(x, (weight,))[0]


def linears(x: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
    x = floats(x, "linear input")
    for weight in weights:
        expect(
            x.dim() == 2 and x.shape[1] == weight.shape[1],
            f"{weight.info.name}: input {list(x.shape)} does not fit weight {list(weight.shape)}",
        )
    rows = x.shape[0]
    results: list[Tensor] = []
    places, outs, strides = [], [], []
    for weight in weights:
        stored = stored_weight(weight)
        if stored is None:
            results.append(decoded.grouped_product(x.unsqueeze(1), weight, 1))
            continue
        out = x.new_empty(rows, weight.shape[0])
        results.append(out)
        places.append(address(stored))
        outs.append(out.data_ptr())
        strides.append(weight.shape[0])
    count = len(places)
    if count and rows:
        native().ps_products(
            *((c_void_p * count)(*places), count, x.data_ptr(), x.shape[1], rows),
            *((c_void_p * count)(*outs), (c_int64 * count)(*strides), parallel.threads()),
        )
    return results


def grouped_linear(x: Tensor, weight: Weight, groups: int) -> Tensor:
    x = floats(x, "linear input")
    rows, columns = x.shape[0], weight.shape[1]
    out = weight.shape[0]
    expect(
        tuple(x.shape) == (rows, groups, columns) and out % groups == 0,
        f"{weight.info.name}: input {list(x.shape)} does not fit weight {list(weight.shape)} in {groups} groups",
    )
    stored = stored_weight(weight)
    if stored is None:
        return decoded.grouped_product(x, weight, groups)
    result = x.new_empty(rows, out)
    if rows:
        native().ps_grouped_product(
            *(address(stored), groups, x.data_ptr(), groups * columns, rows),
            *(result.data_ptr(), out, parallel.threads()),
        )
    return result

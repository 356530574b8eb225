"""Products with stored weights.  A slab of weight rows is decoded, used while it is in the cache, and dropped."""

from typing import Final

from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native
from penstock.kernels.reference.linear import embed
from penstock.weights.tensor import Weight

__all__ = ["embed", "grouped_linear", "linear"]

SLAB: Final = 1 << 17  # weights decoded at a time: 512 KiB of float32, half of a small L2 cache
DECODING: Final = 8  # decoding a weight takes about as long as this many multiply-adds


def linear(x: Tensor, weight: Weight) -> Tensor:
    return grouped_linear(x.unsqueeze(1), weight, 1)


def grouped_linear(x: Tensor, weight: Weight, groups: int) -> Tensor:
    x = floats(x, "linear input")
    rows, columns = x.shape[0], weight.shape[1]
    out = weight.shape[0] // groups  # per group
    expect(
        tuple(x.shape) == (rows, groups, columns) and out * groups == weight.shape[0],
        f"{weight.info.name}: input {list(x.shape)} does not fit weight {list(weight.shape)} in {groups} groups",
    )
    result = x.new_empty(rows, groups * out)
    step = max(4, SLAB // max(1, columns))
    slabs = -(-out // step)  # per group: a slab never crosses into the next, which reads other inputs
    kernel, x_at, out_at = native().ps_linear, x.data_ptr(), result.data_ptr()

    def slab(number: int) -> None:
        group, part = divmod(number, slabs)
        start = group * out + part * step
        stop = min(start + step, (group + 1) * out)
        w = weight.rows(start, stop)  # [stop - start, in]
        kernel(
            *(x_at + 4 * group * columns, groups * columns, rows),
            *(w.ctypes.data, stop - start, columns),
            *(out_at + 4 * start, groups * out),
        )

    work = weight.shape[0] * columns * (rows + (0 if weight.in_place else DECODING))
    if rows:
        parallel.each(groups * slabs, parallel.threads_for(work), slab)
    return result

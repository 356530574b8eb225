"""Products with weights of any type: a slab of rows is decoded, used while it is in the cache, and dropped."""

from typing import Final

from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import native
from penstock.weights.tensor import Weight

SLAB: Final = 1 << 17  # weights decoded at a time: 512 KiB of float32, half of a small L2 cache
DECODING: Final = 8  # decoding a weight takes about as long as this many multiply-adds


def grouped_product(x: Tensor, weight: Weight, groups: int) -> Tensor:
    """x [rows, groups, in], contiguous float32 → [rows, groups · out]"""
    rows, columns = x.shape[0], weight.shape[1]
    out = weight.shape[0] // groups  # per group
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

"""RMS norm."""

from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native, pointer


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x = floats(x, "rms_norm input")
    dim = x.shape[-1]
    if weight is not None:
        weight = floats(weight, "rms_norm weight")
        expect(weight.numel() == dim, f"rms_norm: {weight.numel()} weights for {dim} channels")
    out = x.new_empty(x.shape)
    kernel, x_at, weight_at, out_at = native().ps_rms_norm, x.data_ptr(), pointer(weight), out.data_ptr()

    def piece(start: int, stop: int) -> None:
        kernel(x_at + 4 * start * dim, weight_at, stop - start, dim, eps, out_at + 4 * start * dim)

    if x.numel():
        parallel.over_rows(x.numel() // dim, 4 * x.numel(), piece)
    return out

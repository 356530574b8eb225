"""RMS norm and rotary position embedding."""

import torch
from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native, pointer
from penstock.kernels.parts import Rotation


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x = floats(x, "rms_norm input")
    dim = x.shape[-1]
    if weight is not None:
        weight = floats(weight, "rms_norm weight")
        expect(weight.numel() == dim, f"rms_norm: {weight.numel()} weights for {dim} channels")
    out = x.new_empty(x.shape)
    if x.numel():
        native().ps_rms_norm(
            *(x.data_ptr(), pointer(weight), x.numel() // dim, dim, eps, out.data_ptr(), parallel.threads())
        )
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    x, cos, sin = floats(x, "rotate input"), floats(cos, "cos"), floats(sin, "sin")
    rows, dim, half = x.shape[0], x.shape[-1], cos.shape[-1]
    expect(
        tuple(cos.shape) == tuple(sin.shape) == (rows, half) and 2 * half <= dim,
        f"rotate: cos {list(cos.shape)} and sin {list(sin.shape)} for input {list(x.shape)}",
    )
    out = x.new_empty(x.shape)
    if x.numel():
        native().ps_rotate(
            *(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), rows, x.numel() // (rows * dim), dim, half),
            *(-1.0 if inverse else 1.0, out.data_ptr(), parallel.threads()),
        )
    return out


def angles(positions: Tensor, speed: Tensor) -> Rotation:
    positions, speed = positions.to(torch.long).contiguous(), floats(speed, "speed")
    rows, half = positions.shape[0], speed.shape[0]
    cos, sin = speed.new_empty(rows, half), speed.new_empty(rows, half)
    native().ps_angles(
        *(positions.data_ptr(), speed.data_ptr(), rows, half, cos.data_ptr(), sin.data_ptr()),
        parallel.threads(),
    )
    return Rotation(cos, sin)

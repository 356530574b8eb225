"""Muon: momentum whose directions all weigh the same, for the matrices of the model.

The update of a matrix is its momentum with singular values replaced by about one, found by five steps of a
polynomial iteration (Newton and Schulz).  It is scaled to the size that AdamW's updates have, so both share one curve
of learning rates.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

STEPS = ((3.4445, -4.7750, 2.0315),) * 5  # a·x + b·x³ + c·x⁵ drives singular values of (0, 1] towards one


def orthogonal(batch: Tensor) -> Tensor:
    """batch [n, rows, columns] → matrices with the same singular vectors, singular values near one"""
    x = batch.bfloat16() if batch.is_cuda else batch
    if tall := x.shape[1] > x.shape[2]:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in STEPS:
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    found: Tensor = x.transpose(1, 2) if tall else x
    return found


class Muon(torch.optim.Optimizer):
    """Parameters are matrices, or stacks of them; those of one shape are treated together."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape[-2:]].append(parameter)
            for (rows, columns), parameters in shapes.items():
                updates = [
                    self._momentum(p, group["momentum"]).reshape(-1, rows, columns) for p in parameters
                ]
                size = 0.2 * max(rows, columns) ** 0.5 * group["lr"]
                changes = orthogonal(torch.cat(updates)).split([len(update) for update in updates])
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                for parameter, change in zip(parameters, changes, strict=True):
                    parameter.add_(change.reshape(parameter.shape).to(parameter.dtype), alpha=-size)

    def _momentum(self, parameter: Tensor, share: float) -> Tensor:
        """What the gradient will have become by the next step (Nesterov)."""
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        assert parameter.grad is not None
        average: Tensor = state["momentum"]
        average.lerp_(parameter.grad, 1 - share)
        return parameter.grad.lerp(average, share)

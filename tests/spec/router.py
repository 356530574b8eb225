"""Which experts a token goes to, and with what weight."""

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.backend.deepseek_v4 import RouterSpec
from tests.spec.linear import linear, vector


def route(x: Tensor, tokens: Tensor, spec: RouterSpec) -> tuple[Tensor, Tensor]:
    """x [rows, hidden] → ids and weights [rows, count].  Scores are sqrt(softplus(logit)); the best are chosen by
    score + bias, ties to the lower id, unless the table says which; weights are the scores themselves."""
    scores = torch.sqrt(F.softplus(linear(x, spec.gate)))
    if spec.table is not None:
        ids = torch.from_numpy(spec.table)[tokens]
    else:
        biased = scores if spec.bias is None else scores + vector(spec.bias)
        ids = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, : spec.count]
    weights = scores.gather(1, ids)
    if spec.normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * spec.scale

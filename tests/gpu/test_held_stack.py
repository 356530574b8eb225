"""Experts that a worker holds on the card, against those of a whole layer."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from penstock.backend.cuda.held_stack import CudaHeldStack
from penstock.backend.cuda.placed import CudaExpertStack
from penstock.backend.cuda.prefill_experts import run_experts
from penstock.backend.cuda.prefill_products import HalfRows
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.gpu import reference as ref
from tests.gpu.test_prefill_products import halves, run_layer
from tests.gpu.test_products import Experts, poisoned


def held(layer: Experts) -> CudaHeldStack:
    stack: Any = SimpleNamespace(gate_up=layer.gate_up, down=layer.packed_down)
    return CudaHeldStack(cast(CudaExpertStack, stack))


@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize(("up", "down"), [(types.IQ2_XXS, types.Q2_K), (types.MXFP4, types.MXFP4)])
def test_terms_add_up_to_the_layer(up: WeightType, down: WeightType, rows: int) -> None:
    layer = Experts(up, down, 512, 256, 32)
    x = ref.random_inputs(rows, 512, 20)
    _, _, groups = run_layer(layer, x)
    acts, terms = HalfRows.empty(rows * layer.count, layer.width), poisoned(rows * layer.count, layer.hidden)
    out = poisoned(rows, layer.hidden)
    run_experts(layer.gate_up, layer.packed_down, halves(x, 2), groups, layer.limit, acts, terms, None, out)
    ids, weights = groups.ids.cpu().numpy().astype(np.int64), groups.weights.cpu().numpy()
    pairs = np.stack([np.repeat(np.arange(rows), layer.count), ids.reshape(-1)], axis=1)
    found = held(layer).terms(x, pairs, layer.limit).reshape(rows, layer.count, -1)
    wanted = out.cpu().numpy().astype(np.float64)
    assert ref.error(np.einsum("rk,rkh->rh", weights, found), wanted) < 1e-5


def test_a_term_does_not_depend_on_what_else_is_asked_for() -> None:
    layer = Experts(types.Q2_K, types.Q2_K, 256, 256, 16)
    x, stack, random = ref.random_inputs(50, 256, 3), held(layer), np.random.default_rng(4)
    pairs = np.stack([random.integers(0, 50, 300), random.integers(0, 16, 300)], axis=1)
    whole = stack.terms(x, pairs, layer.limit)
    assert np.array_equal(stack.terms(x, pairs[17:40], layer.limit), whole[17:40])
    assert len(stack.terms(x, pairs[:0], layer.limit)) == 0

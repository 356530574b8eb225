"""Products of many rows against float64, and the same bits for a row however a prompt is cut into chunks."""

import numpy as np
import pytest
import torch

from penstock.backend.cuda import layouts, weights
from penstock.backend.cuda.prefill_experts import Groups, run_experts
from penstock.backend.cuda.prefill_products import (
    HALF_SCALE,
    HalfRows,
    make_halves,
    multiply,
    multiply_groups,
    multiply_swiglu,
)
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.gpu import reference as ref
from tests.gpu.test_products import Experts, ids, on_card, poisoned

# Inputs and, where scales are multiplied in, weights are rounded to eleven bits; both of floats to twenty-two.
HALVES, WHOLE = 1e-3, 3e-5


def halves(x: np.ndarray, planes: int = 1) -> HalfRows:
    out = HalfRows.empty(x.shape[0], x.shape[1], planes)
    make_halves(on_card(x), out)
    return out


@pytest.mark.parametrize("kind", list(layouts.LAYOUTS), ids=ids)
@pytest.mark.parametrize(("rows", "columns"), [(1536, 1024), (64, 256), (80, 768)])
def test_products(kind: WeightType, rows: int, columns: int) -> None:
    raw = ref.random_weights(kind, rows, columns, 3)
    packed = weights.repack(on_card(raw), kind, rows, columns)
    planes = 2 if kind is types.F32 else 1
    n = 300
    x = ref.random_inputs(n, columns, 4)
    out = poisoned(n, rows)
    multiply([packed], halves(x, planes), [out])
    wanted = x.astype(np.float64) @ ref.decoded(raw, kind).T
    assert ref.error(out.cpu().numpy(), wanted) < (WHOLE if kind is types.F32 else HALVES)
    at = 0
    for count in (1, 9, 30, 40, 60, 90, 70):
        part = poisoned(count, rows)
        multiply([packed], halves(x[at : at + count], planes), [part])
        assert torch.equal(part, out[at : at + count]), f"rows {at} … {at + count}"
        at += count


def test_two_planes_of_inputs() -> None:
    raw = ref.random_weights(types.F16, 256, 4096, 5)
    packed = weights.repack(on_card(raw), types.F16, 256, 4096)
    x, out = ref.random_inputs(70, 4096, 6), poisoned(70, 256)
    multiply([packed], halves(x, 2), [out], planes=2)
    assert ref.error(out.cpu().numpy(), x.astype(np.float64) @ ref.decoded(raw, types.F16).T) < WHOLE


def test_results_as_halves() -> None:
    raw = ref.random_weights(types.Q8_0, 528, 512, 5)
    packed = weights.repack(on_card(raw), types.Q8_0, 528, 512)
    x = ref.random_inputs(150, 512, 6) * np.exp(np.arange(150)[:, None] / 10 - 7).astype(np.float32)
    out, image = torch.full((150, 528), float("nan"), dtype=torch.float16, device="cuda"), halves(x)
    multiply([packed], image, [out])
    assert image.scales is not None
    got = out.double().cpu().numpy() * image.scales.double().cpu().numpy()[:, None] * HALF_SCALE
    wanted = x.astype(np.float64) @ ref.decoded(raw, types.Q8_0).T
    for row in range(150):
        assert ref.error(got[row].astype(np.float32), wanted[row]) < 2e-3


def test_several_matrices_and_a_norm() -> None:
    columns, eps, n = 4096, 1e-6, 50
    x, norm = ref.random_inputs(n, columns, 5), ref.random_inputs(1, columns, 6)[0]
    kinds = [types.Q8_0, types.F16, types.Q8_0, types.BF16]
    raws = [
        ref.random_weights(k, rows, columns, rows) for k, rows in zip(kinds, (1024, 512, 48, 64), strict=True)
    ]
    matrices = [weights.repack(on_card(r), k, len(r), columns) for r, k in zip(raws, kinds, strict=True)]
    outs = [poisoned(n, len(r)) for r in raws]
    image = HalfRows.empty(n, columns)
    make_halves(on_card(x), image, on_card(norm), eps)
    multiply(matrices, image, outs)
    wanted = ref.rms_norm(x.astype(np.float64), norm.astype(np.float64), eps)
    for raw, kind, out in zip(raws, kinds, outs, strict=True):
        assert ref.error(out.cpu().numpy(), wanted @ ref.decoded(raw, kind).T) < HALVES


@pytest.mark.parametrize("columns", [512, 320])
def test_groups_of_columns(columns: int) -> None:
    groups, rank, n = 8, 64, 150
    kind = types.Q8_0
    raw = ref.random_weights(kind, groups * rank, columns, 7)
    packed = weights.repack(on_card(raw), kind, rank, columns, groups)
    x = ref.random_inputs(n, groups * columns, 9)
    wanted = np.einsum(
        "rgc,gkc->rgk",
        x.astype(np.float64).reshape(n, groups, columns),
        ref.decoded(raw, kind).reshape(groups, rank, columns),
    ).reshape(n, -1)
    images = [halves(x.reshape(n * groups, columns))]
    if columns % 256 == 0:
        images.append(halves(x))
    for image in images:
        out = poisoned(n, groups * rank)
        multiply_groups(packed, image, out)
        assert ref.error(out.cpu().numpy(), wanted) < HALVES


def run_layer(
    layer: Experts, x: np.ndarray, table: np.ndarray | None = None, tokens: np.ndarray | None = None
) -> tuple[torch.Tensor, torch.Tensor, Groups]:
    n = len(x)
    image = halves(x, 2)
    logits, out, shared = poisoned(n, layer.experts), poisoned(n, layer.hidden), poisoned(n, layer.hidden)
    multiply([layer.packed_router], image, [logits], planes=2)
    inner = HalfRows.empty(n, layer.width)
    multiply_swiglu(layer.shared_gate_up, image, inner, layer.limit)
    multiply([layer.shared_down], inner, [shared])
    groups = Groups(n, layer.count, layer.experts)
    groups.route(
        logits, 1.5, None if table is not None else on_card(layer.bias),
        None if table is None else on_card(table), None if tokens is None else on_card(tokens),
    )  # fmt: skip
    acts, terms = HalfRows.empty(n * layer.count, layer.width), poisoned(n * layer.count, layer.hidden)
    run_experts(layer.gate_up, layer.packed_down, image, groups, layer.limit, acts, terms, shared, out)
    return out, logits, groups


@pytest.mark.parametrize(
    ("up", "down", "hidden", "width"),
    [
        (types.IQ2_XXS, types.Q2_K, 1024, 512),
        (types.IQ2_XXS, types.Q2_K, 256, 256),
        (types.Q4_K, types.Q4_K, 1024, 512),
        (types.MXFP4, types.MXFP4, 1024, 512),
        (types.Q8_0, types.Q8_0, 512, 288),
        (types.Q2_K, types.IQ2_XXS, 768, 512),
    ],
    ids=lambda v: v.name if isinstance(v, WeightType) else str(v),
)
def test_experts(up: WeightType, down: WeightType, hidden: int, width: int) -> None:
    layer = Experts(up, down, hidden, width, 32)
    x = ref.random_inputs(200, hidden, 20)
    out, logits, _ = run_layer(layer, x)
    wanted = layer.wanted(x.astype(np.float64), logits.cpu().numpy().astype(np.float64), None, None)
    assert ref.error(out.cpu().numpy(), wanted) < 2 * HALVES
    # The experts of a row do not depend on the rows beside it.
    alone, _, _ = run_layer(layer, x[63:190])
    assert torch.equal(alone, out[63:190])
    # The kernels for few rows say the same within the rounding of inputs.
    few, _ = layer.run(on_card(x[:8]), None, None)
    assert ref.error(out[:8].cpu().numpy(), few.cpu().numpy().astype(np.float64)) < 2 * HALVES


def test_one_expert_has_most_rows_and_experts_by_token() -> None:
    layer = Experts(types.Q2_K, types.Q2_K, 256, 256, 32)
    rng = np.random.default_rng(3)
    table = np.stack([rng.permutation(32)[:6] for _ in range(50)]).astype(np.int32)
    table[:40, 2] = 7  # … so that expert 7 needs several tiles; a token may have it twice
    tokens = rng.integers(0, 50, 400).astype(np.int32)
    x = ref.random_inputs(400, 256, 21)
    out, logits, groups = run_layer(layer, x, table, tokens)
    assert np.array_equal(groups.ids.cpu().numpy(), table[tokens])
    wanted = layer.wanted(x.astype(np.float64), logits.cpu().numpy().astype(np.float64), table, tokens)
    assert ref.error(out.cpu().numpy(), wanted) < 2 * HALVES
    # Items stand by expert, then by row; tiles are as even as can be.
    flat = table[tokens].reshape(-1)
    order = np.argsort(flat, kind="stable")
    items = groups.items
    assert items.gather is not None
    assert np.array_equal(items.gather.cpu().numpy(), order // 6)
    count = int(items.tile_count)
    tiles = items.tiles[:count].cpu().numpy()
    covered = np.concatenate([np.full(n, e) for e, _, n in tiles])
    assert np.array_equal(covered, flat[order])
    assert tiles[:, 2].max() <= 128


def test_what_the_router_chooses_is_what_it_chooses_for_few_rows() -> None:
    layer = Experts(types.Q8_0, types.Q8_0, 256, 256, 64)
    x = ref.random_inputs(40, 256, 22)
    _, logits, groups = run_layer(layer, x)
    scores = ref.router_scores(logits.cpu().numpy().astype(np.float64))
    wanted = np.argsort(-(scores + layer.bias), axis=1, kind="stable")[:, :6]
    assert np.array_equal(groups.ids.cpu().numpy(), wanted)
    chosen = np.take_along_axis(scores, wanted, axis=1)
    np.testing.assert_allclose(
        groups.weights.cpu().numpy(), 1.5 * chosen / chosen.sum(axis=1, keepdims=True), rtol=1e-5
    )

"""Products with packed weights against float64, and the same bits for a row whatever stands beside it."""

import numpy as np
import pytest
import torch

from penstock.backend.cuda import layouts, weights
from penstock.backend.cuda.deepseek_v4.batch import Launch
from penstock.backend.cuda.dense import Dense, slices_of
from penstock.backend.cuda.experts import Down, Up, takes_along, up_forms
from penstock.backend.cuda.experts_many import ManyExperts, parts_floats
from penstock.backend.cuda.hyper import MakeImage
from penstock.backend.cuda.inputs import (
    DIGITS,
    FLOATS,
    HALVES,
    NEGATED,
    DigitImage,
    DigitVectors,
    Image,
    few_rows,
    forms_of,
)
from penstock.backend.cuda.routing import Router
from penstock.weights import types
from penstock.weights.types import WeightType
from tests.gpu import reference as ref

KINDS = list(layouts.LAYOUTS)
DENSE = [kind for kind in KINDS if kind is not types.IQ2_XXS]
EXPERTS = [types.IQ2_XXS, types.Q2_K, types.Q4_K, types.MXFP4, types.Q8_0, types.Q6_K]
PLAIN = (types.F16, types.BF16, types.F32, layouts.FP8_128)

# Inputs have 16 bits: half a step of 1 / 32512 of the largest of 256, which averages out over a row.
AGAINST_INPUTS, AGAINST_DIGITS = 2e-4, 6e-6


def ids(kind: WeightType) -> str:
    return kind.name


def on_card(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).cuda()


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), device="cuda")


@pytest.mark.parametrize("kind", KINDS, ids=ids)
@pytest.mark.parametrize(("rows", "columns"), [(32, 256), (48, 1024), (37, 768)])
def test_repacking_on_the_card_is_the_layout(kind: WeightType, rows: int, columns: int) -> None:
    raw = ref.random_weights(kind, rows, columns, 1)
    packed = weights.repack(on_card(raw), kind, rows, columns)
    assert np.array_equal(packed.data.cpu().numpy(), layouts.pack(raw, kind).reshape(-1))


def test_repacking_pairs_and_experts() -> None:
    gate, up = (ref.random_weights(types.IQ2_XXS, 3 * 32, 512, seed) for seed in (1, 2))
    packed = weights.repack_pair(on_card(gate), on_card(up), types.IQ2_XXS, 32, 512, 3)
    wanted = layouts.interleave(layouts.pack(gate, types.IQ2_XXS), layouts.pack(up, types.IQ2_XXS))
    assert np.array_equal(packed.data.cpu().numpy(), wanted.reshape(-1))


@pytest.mark.parametrize("kind", DENSE, ids=ids)
@pytest.mark.parametrize(("rows", "columns"), [(64, 256), (256, 1024), (1536, 4096), (80, 768), (512, 8192)])
def test_dense_products(kind: WeightType, rows: int, columns: int) -> None:
    raw = ref.random_weights(kind, rows, columns, 3)
    packed = weights.repack(on_card(raw), kind, rows, columns)
    n = 8 if columns < 8192 or kind not in PLAIN else 4
    x = ref.random_inputs(n, columns, 4)
    device_x = on_card(x)
    first = None
    for count in (n, 1, 2, 3, 5):
        if count > n:
            continue
        out = poisoned(count, rows)
        Dense([packed], device_x[:count], [out], count).launch()
        result = out.cpu().numpy()
        if first is None:
            first = result
            exact = x.astype(np.float64) if kind in PLAIN else ref.as_digits(x.astype(np.float64))
            w = ref.decoded(raw, kind)
            assert ref.error(result, exact @ w.T) < AGAINST_DIGITS
            assert ref.error(result, x.astype(np.float64) @ w.T) < AGAINST_INPUTS
        assert np.array_equal(result, first[:count]), f"{count} rows differ from {n}"


def test_a_norm_on_the_way_in_and_several_matrices() -> None:
    columns, eps = 4096, 1e-6
    x, norm = ref.random_inputs(3, columns, 5), ref.random_inputs(1, columns, 6)[0]
    kinds = [types.Q8_0, types.F16, types.F32, types.Q8_0]
    raws = [
        ref.random_weights(kind, rows, columns, rows)
        for kind, rows in zip(kinds, (1024, 512, 24, 512), strict=True)
    ]
    matrices = [weights.repack(on_card(r), k, len(r), columns) for r, k in zip(raws, kinds, strict=True)]
    outs = [poisoned(3, len(r)) for r in raws]
    Dense(matrices, on_card(x), outs, 3, norm=on_card(norm), eps=eps).launch()
    wanted = ref.rms_norm(x.astype(np.float64), norm.astype(np.float64), eps)
    for raw, kind, out in zip(raws, kinds, outs, strict=True):
        assert ref.error(out.cpu().numpy(), wanted @ ref.decoded(raw, kind).T) < AGAINST_INPUTS


def test_grouped_products_and_digits_for_the_next() -> None:
    """The two halves of an output projection: 8 groups of 512 → 64 each, then 512 → 96."""
    groups, columns, rank, hidden = 8, 512, 64, 96
    a = ref.random_weights(types.Q8_0, groups * rank, columns, 7)
    b = ref.random_weights(types.Q8_0, hidden, groups * rank, 8)
    x = ref.random_inputs(4, groups * columns, 9)
    pack_a = weights.repack(on_card(a), types.Q8_0, rank, columns, groups)
    pack_b = weights.repack(on_card(b), types.Q8_0, hidden, groups * rank)
    for rows in (4, 1):
        middle, out = DigitImage(rows, groups * rank), poisoned(rows, hidden)
        first = Dense([pack_a], on_card(x)[:rows], [middle.values], rows, digits=middle)
        second = Dense([pack_b], middle.image, [out], rows, ahead=pack_a.data)
        for _ in range(2):  # counters must be back at zero
            first.launch()
            second.launch()
        split = x[:rows].astype(np.float64).reshape(rows, groups, columns)
        w = ref.decoded(a, types.Q8_0).reshape(groups, rank, columns)
        wanted = np.einsum("rgc,gkc->rgk", split, w).reshape(rows, -1)
        assert ref.error(middle.values.cpu().numpy(), wanted) < AGAINST_INPUTS
        assert ref.error(out.cpu().numpy(), wanted @ ref.decoded(b, types.Q8_0).T) < 2 * AGAINST_INPUTS
        assert not middle.counters.any()


class Experts:
    """A layer's experts, routed and shared, and what float64 makes of them."""

    def __init__(self, up_kind: WeightType, down_kind: WeightType, hidden: int, width: int, experts: int):
        self.up_kind, self.down_kind = up_kind, down_kind
        self.hidden, self.width, self.experts, self.count, self.limit = hidden, width, experts, 6, 10.0
        self.gate = ref.random_weights(up_kind, experts * width, hidden, 10)
        self.up = ref.random_weights(up_kind, experts * width, hidden, 11)
        self.down = ref.random_weights(down_kind, experts * hidden, width, 12)
        self.shared = [
            ref.random_weights(types.Q8_0, *shape, 13)
            for shape in ((width, hidden), (width, hidden), (hidden, width))
        ]
        self.router = ref.random_weights(types.F16, experts, hidden, 14)
        self.bias = np.random.default_rng(15).standard_normal(experts).astype(np.float32) * 0.1
        gate, up, down = (on_card(raw) for raw in (self.gate, self.up, self.down))
        self.gate_up = weights.repack_pair(gate, up, up_kind, width, hidden, experts)
        self.packed_down = weights.repack(down, down_kind, hidden, width, experts)
        q8 = types.Q8_0
        shared = [on_card(raw) for raw in self.shared]
        self.shared_gate_up = weights.repack_pair(shared[0], shared[1], q8, width, hidden)
        self.shared_down = weights.repack(shared[2], q8, hidden, width)
        self.packed_router = weights.repack(on_card(self.router), types.F16, experts, hidden)

    def run(
        self, x: torch.Tensor, table: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        rows = len(x)
        along = takes_along(self.packed_router, self.shared_gate_up, self.shared_down, self.gate_up, rows)
        parts = poisoned(slices_of(self.packed_router) if along else 1, rows, self.experts)
        acts, inner = DigitVectors(rows * self.count, self.width, 64), DigitVectors(rows, self.width)
        bias, out = None if table is not None else on_card(self.bias), poisoned(rows, self.hidden)
        router, limit = Router(parts, self.count, 1.5, bias, table, tokens), self.limit
        launches: list[Launch] = []
        images: list[Image] = []
        gate_up, down = self.shared_gate_up, self.shared_down
        for first in range(0, rows, 8):
            some = x[first : first + 8]
            size = len(some)
            forms = forms_of([types.Q8_0, types.F16], size) | up_forms(self.up_kind, size)
            image = Image(size, self.hidden, forms)
            images.append(image)
            launches.append(MakeImage(some, image))
            if not along:
                logits = parts[0, first : first + size]
                launches.append(Dense([self.packed_router], image, [logits], size, late=True, stages=4))
        if rows > few_rows():
            room = poisoned(rows * parts_floats(self.hidden, self.width, self.count))
            given_too = (router, images, acts, out, room, limit, (down, inner), gate_up, limit)
            launches.append(ManyExperts(self.gate_up, self.packed_down, *given_too))
        else:
            given = (self.gate_up, router, images[0], acts, rows)
            if along:
                launches.append(Up(*given, self.packed_router, gate_up, inner, limit, limit))
            else:
                launches.insert(
                    1, Dense([gate_up], images[0], [inner.values], rows, digits=inner, limit=limit)
                )
                launches.append(Up(*given, limit=limit))
            launches.append(Down(self.packed_down, router, acts, out, rows, down, inner))
        for _ in range(2):
            for kernel in launches:
                kernel.launch()
        logits = torch.zeros(rows, self.experts, device="cuda")
        for part in parts:
            logits += part
        assert not router.counter.any()
        assert not inner.counters.any()
        assert np.array_equal(
            router.ids(rows).cpu().numpy(), self.chosen(logits.cpu().numpy(), table, tokens)
        )
        assert not acts.counters.any()
        return out, logits

    def chosen(
        self, logits: np.ndarray, table: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> np.ndarray:
        """Best first, ties to the lower id."""
        if table is not None and tokens is not None:
            by_token: np.ndarray = table.cpu().numpy()[tokens.cpu().numpy()]
            return by_token
        ranked = -(ref.router_scores(logits.astype(np.float64)) + self.bias)
        return np.argsort(ranked, axis=1, kind="stable")[:, : self.count]

    def wanted(
        self, x: ref.Floats, logits: ref.Floats, table: np.ndarray | None, tokens: np.ndarray | None
    ) -> ref.Floats:
        shape = (self.experts, self.width, self.hidden)
        gate, up = (ref.decoded(raw, self.up_kind).reshape(shape) for raw in (self.gate, self.up))
        down = ref.decoded(self.down, self.down_kind).reshape(self.experts, self.hidden, self.width)
        g, u, d = (ref.decoded(raw, types.Q8_0) for raw in self.shared)
        out = ref.swiglu(x @ g.T, x @ u.T, self.limit) @ d.T
        for r in range(len(x)):
            scores = ref.router_scores(logits[r])
            chosen = np.argsort(-(scores + self.bias), kind="stable")[: self.count]
            if table is not None and tokens is not None:
                chosen = table[tokens[r]]
            w = scores[chosen] / scores[chosen].sum() * 1.5
            for e, weight in zip(chosen, w, strict=True):
                out[r] += weight * (ref.swiglu(gate[e] @ x[r], up[e] @ x[r], self.limit) @ down[e].T)
        return out


@pytest.mark.parametrize(
    ("up", "down", "hidden", "width"),
    [
        (types.IQ2_XXS, types.Q2_K, 4096, 2048),
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
    x = ref.random_inputs(32, hidden, 20)
    device_x = on_card(x)
    first = None
    for rows in (32, 1, 8, 2, 5, 3, 16):
        out, logits = layer.run(device_x[:rows], None, None)
        result = out.cpu().numpy()
        if first is None:
            first = result
            w = ref.decoded(layer.router, types.F16)
            assert ref.error(logits.cpu().numpy(), x.astype(np.float64) @ w.T) < AGAINST_DIGITS
            wanted = layer.wanted(x.astype(np.float64), logits.cpu().numpy().astype(np.float64), None, None)
            assert ref.error(result, wanted) < 2 * AGAINST_INPUTS
        assert np.array_equal(result, first[:rows]), f"{rows} rows differ from 32"


@pytest.mark.parametrize("tokens", [[3, 9, 3], [4] * 8, [1, 4, 4, 4, 4, 4, 1], [7]], ids=str)
def test_experts_by_token(tokens: list[int]) -> None:
    """Rows with the same experts share their weights by fours; a table may name an expert twice."""
    layer = Experts(types.IQ2_XXS, types.Q2_K, 512, 256, 32)
    rng = np.random.default_rng(30)
    table = np.stack([rng.choice(32, 6, replace=False) for _ in range(10)]).astype(np.int32)
    table[7, 4] = table[7, 1]
    rows = np.array(tokens, np.int32)
    x = ref.random_inputs(len(rows), 512, 31)
    out, logits = layer.run(on_card(x), on_card(table), on_card(rows))
    wanted = layer.wanted(x.astype(np.float64), logits.cpu().numpy().astype(np.float64), table, rows)
    assert ref.error(out.cpu().numpy(), wanted) < 2 * AGAINST_INPUTS


@pytest.mark.parametrize("kind", DENSE, ids=ids)
def test_images_give_the_same_bits(kind: WeightType) -> None:
    """Inputs made ready once for several products, in more forms than this one asks for."""
    columns, rows, eps = 1024, 3, 1e-6
    packed = weights.repack(on_card(ref.random_weights(kind, 64, columns, 40)), kind, 64, columns)
    x, norm = on_card(ref.random_inputs(rows, columns, 41)), on_card(ref.random_inputs(1, columns, 42)[0])
    image = Image(rows, columns, DIGITS | NEGATED | HALVES | FLOATS)
    outs = [poisoned(rows, 64) for _ in range(2)]
    MakeImage(x, image, norm, eps).launch()
    Dense([packed], image, [outs[0]], rows).launch()
    Dense([packed], x, [outs[1]], rows, norm, eps).launch()
    assert torch.equal(outs[0], outs[1])


def image_of(x: torch.Tensor, forms: int) -> Image:
    image = Image(len(x), x.shape[1], forms)
    MakeImage(x, image).launch()
    return image


@pytest.mark.parametrize("kind", DENSE, ids=ids)
@pytest.mark.parametrize(
    ("rows", "columns"), [(512, 4096), (48, 8192), (40000, 256), (80, 768), (16400, 1024)]
)
def test_many_rows_have_the_bits_of_few(kind: WeightType, rows: int, columns: int) -> None:
    """Without room in a block, those of a cluster share the columns, launches the rows, or inputs stay in memory."""
    packed = weights.repack(on_card(ref.random_weights(kind, rows, columns, 60)), kind, rows, columns)
    x = on_card(ref.random_inputs(32, columns, 61))
    wanted = poisoned(32, rows)
    for row in range(32):
        Dense([packed], x[row : row + 1], [wanted[row : row + 1]], 1).launch()
    for count in (5, 8, 16, 32):
        out = poisoned(count, rows)
        Dense([packed], image_of(x[:count], DIGITS | HALVES | FLOATS), [out], count).launch()
        assert torch.equal(out, wanted[:count]), f"{count} rows"


@pytest.mark.parametrize("count", [8, 16, 32])
def test_many_rows_of_several_matrices_groups_and_pairs(count: int) -> None:
    """Everything that a launch can have: two forms of inputs, groups, gate and up, digits for the next."""
    columns, groups, rank = 2048, 4, 256
    x = on_card(ref.random_inputs(count, groups * columns, 70))
    own = x[:, :columns].contiguous()
    kinds = [types.Q8_0, types.F16, types.Q8_0]
    several = [
        weights.repack(on_card(ref.random_weights(k, n, columns, n)), k, n, columns)
        for k, n in zip(kinds, (1024, 528, 96), strict=True)
    ]
    gate, up = (on_card(ref.random_weights(types.Q8_0, 640, columns, seed)) for seed in (71, 72))
    pair = weights.repack_pair(gate, up, types.Q8_0, 640, columns, 1)
    grouped = weights.repack(
        on_card(ref.random_weights(types.Q8_0, groups * rank, columns, 73)), types.Q8_0, rank, columns, groups
    )
    last = weights.repack(on_card(ref.random_weights(types.Q8_0, 528, 1024, 74)), types.Q8_0, 528, 1024)

    def run(some: torch.Tensor, image: Image, heads: torch.Tensor | Image) -> list[torch.Tensor]:
        n = len(some)
        outs = [poisoned(n, m.rows) for m in several]
        inner, middle, end = DigitVectors(n, 640), DigitImage(n, groups * rank), poisoned(n, 528)
        launches = [
            Dense(several, image, outs, n),
            Dense([pair], image, [inner.values], n, digits=inner, limit=10.0),
            Dense([grouped], heads, [middle.values], n, digits=middle),
            Dense([last], middle.image, [end], n),
        ]
        for _ in range(2):  # counters must be back at zero
            for launch in launches:
                launch.launch()
        assert not inner.counters.any()
        assert not middle.counters.any()
        return [*outs, inner.values, inner.digits, inner.scales, middle.values, end]

    heads = Image(count, columns, DIGITS, groups)
    for group in range(groups):
        part = x[:, group * columns : (group + 1) * columns].contiguous()
        heads.data[:, group] = image_of(part, DIGITS).data[:, 0]
    got = run(own, image_of(own, DIGITS | HALVES), heads)
    for row in range(0, count, 3):
        one = slice(row, row + 1)
        for a, b in zip(got, run(own[one], image_of(own[one], DIGITS | HALVES), x[one]), strict=True):
            assert torch.equal(a[one], b), f"row {row} of {count}"


def test_what_the_router_chooses() -> None:
    """Ties go to the lower id; a row's experts stand best first, with weights that add up to the scale."""
    experts, hidden = 64, 256
    raw = ref.random_weights(types.F32, experts, hidden, 50)
    raw[33] = raw[12]  # equal logits
    packed = weights.repack(on_card(raw), types.F32, experts, hidden)
    x = ref.random_inputs(4, hidden, 51)
    x[0] = raw[12].view(np.float32) * 50  # so that both are the best of row 0
    logits = poisoned(4, experts)
    router = Router(logits, 6, 1.5)
    image = Image(4, hidden, DIGITS | FLOATS)
    gate, up = (on_card(ref.random_weights(types.Q8_0, experts * 32, hidden, seed)) for seed in (52, 53))
    gate_up = weights.repack_pair(gate, up, types.Q8_0, 32, hidden, experts)
    MakeImage(on_card(x), image).launch()
    Dense([packed], image, [logits], 4).launch()
    down = weights.repack(
        on_card(ref.random_weights(types.Q8_0, experts * hidden, 32, 54)), types.Q8_0, hidden, 32, experts
    )
    parts = poisoned(4 * parts_floats(hidden, 32, 6))
    ManyExperts(gate_up, down, router, [image], DigitVectors(4 * 6, 32), poisoned(4, hidden), parts).launch()
    scores = ref.router_scores(logits.cpu().numpy().astype(np.float64))
    wanted = np.argsort(-scores, axis=1, kind="stable")[:, :6]
    assert np.array_equal(router.ids(4).cpu().numpy(), wanted)
    assert wanted[0, :2].tolist() == [12, 33]
    chosen = np.take_along_axis(scores, wanted, axis=1)
    got = router.weights(4).cpu().numpy()
    np.testing.assert_allclose(got, 1.5 * chosen / chosen.sum(axis=1, keepdims=True), rtol=1e-5)

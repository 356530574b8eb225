"""Time by kernel adds up to the time that passed, though kernels overlap.  Needs no card."""

import pytest

from benchmarks.gpu_profile import Launched, by_kernel, experts_read, table
from penstock.backend.cuda.profile import IDLE, Ran, by_name, short_name

# The second begins while the first still runs and waits for it; then there is nothing to do for a while.
RAN = [
    Ran("a", 0, 1000),
    Ran("b", 200, 1500),
    Ran("a", 1600, 1800),
    Ran("b", 1700, 1750),
    Ran("c", 1800, 2000),
]


def test_a_kernel_is_charged_from_the_end_of_the_one_before() -> None:
    found = {kernel.name: (kernel.launches, round(kernel.seconds * 1e9)) for kernel in by_name(RAN)}
    assert found == {"a": (2, 1200), "b": (2, 500), "c": (1, 200), IDLE: (1, 100)}
    assert sum(nanoseconds for _, nanoseconds in found.values()) == 2000


@pytest.mark.parametrize("first", range(4))
def test_launches_are_told_apart_by_their_order(first: int) -> None:
    launched = [Launched("a", "a Q8_0", 100.0), Launched("b", "b Q2_K", 50.0), Launched("a", "a F16", 7.0)]
    names = ["a", "b", "a", "copy"]
    ran = [Ran(name, 10 * at, 10 * at + 10) for at, name in enumerate((names[first:] + names[:first]) * 2)]
    lines = {line.label: line for line in by_kernel(ran, launched, repeats=2)}
    assert {label: (line.launches, line.nbytes) for label, line in lines.items() if label != IDLE} == {
        "a Q8_0": (1, 100), "b Q2_K": (1, 50), "a F16": (1, 7), "copy": (1, 0),
    }  # fmt: skip
    assert table("decode", list(lines.values()), 1e12).row_count == len(lines)


def test_experts_that_rows_share_are_read_once() -> None:
    assert experts_read(1, 6, 256) == pytest.approx(6)
    assert 6 < experts_read(4, 6, 256) < 24
    assert experts_read(10_000, 6, 256) == pytest.approx(256)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("dense", "dense"),
        ("void at::native::fill<int, 4>(int*, long)", "fill"),
        ("void at::native::(anonymous namespace)::indexSelect<float, 2>(int)", "indexSelect"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
    ],
)
def test_names_are_short(name: str, short: str) -> None:
    assert short_name(name) == short

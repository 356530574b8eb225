"""Every kernel that steps of the published model launch compiles for every card.  Needs the compiler (`make
test-kernels` installs it) and no GPU.  What has compiled is kept in build/kernels."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.backend.cuda.compile import KernelCache, Target, nvrtc_compiler
from tests.gpu.published import MULTIPROCESSORS, ROWS, Compiled, a_card, prompt, standing_in, step

FOLDER = Path(__file__).parents[2] / "build" / "kernels"


@pytest.fixture(scope="module")
def version() -> str:
    nvrtc = pytest.importorskip(
        "cuda.bindings.nvrtc", reason="no compiler for kernels here: make test-kernels"
    )
    try:
        _, *found = nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"no compiler for kernels here ({error}): make test-kernels")
    return ".".join(map(str, found))


def compiled_for(capability: tuple[int, int]) -> Sequence[Compiled]:
    with standing_in(a_card(capability)) as compiled:
        for rows in ROWS:
            step(rows)
        prompt()
    return sorted(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("capability", list(MULTIPROCESSORS), ids=lambda c: f"{c[0]}.{c[1]}")
def test_kernels_compile(capability: tuple[int, int], version: str) -> None:
    major, minor = capability
    target = Target(f"sm_{major}{minor}{'a' if major >= 9 else ''}", "none", version)
    cache = KernelCache(FOLDER, nvrtc_compiler, target, say=lambda _: None)
    with ThreadPoolExecutor(2) as pool:
        for code in pool.map(lambda each: cache.get(each.source, *each.options), compiled_for(capability)):
            assert code

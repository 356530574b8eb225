"""Tests of the GPU kernels.  Those that need no card (layouts, the cache of compiled kernels) run everywhere."""

import pytest

WITHOUT_A_CARD = (
    "test_compile.py",
    "test_faults.py",
    "test_graphs.py",
    "test_held_tiles.py",
    "test_kernels.py",
    "test_layouts.py",
    "test_prefill_forms.py",
    "test_profile.py",
    "test_shapes.py",
    "test_states.py",
)


def _why_not() -> str | None:
    try:
        import torch
    except ImportError:
        return "the GPU kernels need torch"
    if not torch.cuda.is_available():
        return "no NVIDIA GPU here: the GPU kernels are not tested"
    try:
        import cuda.bindings.nvrtc  # noqa: F401
    except ImportError:
        return "the GPU kernels need cuda-bindings (pip install penstock[cuda])"
    return None


def pytest_ignore_collect(collection_path: object) -> bool | None:
    name = getattr(collection_path, "name", "")
    return True if name.startswith("test_") and name not in WITHOUT_A_CARD and _why_not() else None


def pytest_report_header() -> str | None:
    why = _why_not()
    return f"tests/gpu: {why}" if why else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if why := _why_not():
        terminalreporter.write_line(f"tests/gpu: {why}")

"""Finds, loads and describes the native library (src/penstock/native)."""

import ctypes
import functools
import sys
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import penstock
from penstock.errors import PenstockError

ABI: Final = 1
NAME: Final = f"libpenstock_native.{'dylib' if sys.platform == 'darwin' else 'so'}"

HOW_TO_BUILD: Final = (
    "Build it with `pip install .`, or in a checkout with\n"
    "  cmake -S src/penstock/native -B build/native -DCMAKE_BUILD_TYPE=Release && cmake --build build/native"
)


class StoredWeight(ctypes.Structure):
    """ps_weight of products.h, field by field."""

    _fields_ = (
        ("data", c_void_p),
        ("scale", c_void_p),
        ("type", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
    )

    def move(self, data: int, scale: int | None) -> None:
        """The weight lies elsewhere now.  Whoever knows this description sees it there."""
        self.data, self.scale = data, scale


class StoredExpert(ctypes.Structure):
    """ps_expert of products.h, field by field: where the descriptions of its three weights are."""

    _fields_ = (("gate", c_void_p), ("up", c_void_p), ("down", c_void_p))


_pointer, _size, _real = c_void_p, c_int64, c_float

# Entry point: type of the result, types of the arguments.  The contracts stand in the C++ files.
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "ps_linear": (None, _pointer, _size, _size, _pointer, _size, _size, _pointer, _size),
    "ps_products": (None, _pointer, _size, _pointer, _size, _size, _pointer, _pointer, _size),
    "ps_grouped_product": (None, _pointer, _size, _pointer, _size, _size, _pointer, _size, _size),
    "ps_experts": (
        *(None, _pointer, _pointer, _size, _pointer, _pointer, _size, _real, _pointer, _real),
        *(_pointer, _size, _pointer, _size, _size),
    ),
    "ps_expert_parts": (
        *(None, _pointer, _pointer, _size, _pointer, _size, _real, _pointer, _real),
        *(_pointer, _size, _pointer, _size),
    ),
    "ps_expert_sum": (None, _pointer, _pointer, _size, _size, _size, _pointer, _size, _pointer, _size),
    "ps_expert_add": (None, _pointer, _pointer, _pointer, _size, _size, _pointer),
    "ps_instruction_set": (ctypes.c_char_p,),
    "ps_chain": (ctypes.c_uint64, _size),
    "ps_threads_check": (None, _size, _size, _pointer),
    "ps_rms_norm": (None, _pointer, _pointer, _size, _size, _real, _pointer, _size),
    "ps_rotate": (*(None, _pointer, _pointer, _pointer, _size, _size, _size, _size, _real, _pointer, _size),),
    "ps_angles": (None, _pointer, _pointer, _size, _size, _pointer, _pointer, _size),
    "ps_hyper_mix": (
        *(None, _pointer, _pointer, _pointer, _size, _size, _size, _real),
        *(_pointer, _pointer, _pointer, _size),
    ),
    "ps_hyper_gate": (None, _pointer, _pointer, _pointer, _size, _size, _real, _pointer),
    "ps_hyper_collapse": (None, _pointer, _pointer, _size, _size, _size, _pointer, _size),
    "ps_hyper_expand": (
        *(None, _pointer, _pointer, _pointer, _pointer, _size, _size, _size, _pointer, _size),
    ),
    "ps_hyper_enter": (None, _pointer, _pointer, _pointer, _pointer, _size, _pointer, _pointer, _size),
    "ps_hyper_leave": (None, _pointer, _pointer, _pointer, _size, _size, _size, _size),
    "ps_project": (None, _pointer, _pointer, _size, _pointer, _size),
    "ps_queries_of": (
        *(None, _pointer, _pointer, _size, _pointer, _pointer, _size, _pointer, _pointer, _size),
    ),
    "ps_keys_of": (
        *(None, _pointer, _pointer, _size, _pointer, _pointer, _size, _pointer, _pointer, _size, _size),
    ),
    "ps_compress": (
        *(None, _pointer, _pointer, _size, _size, _size, _pointer, _pointer, _size, _pointer, _size, _size),
    ),
    "ps_layer_attention": (
        *(None, _pointer, _pointer, _size, _pointer, _size, _pointer, _pointer, _pointer, _size),
    ),
    "ps_output_of": (None, _pointer, _pointer, _size, _pointer, _size),
    "ps_router_of": (None, _pointer, _pointer, _pointer, _size, _pointer, _pointer, _size),
    "ps_logits_top": (c_int64, _pointer, _size, _pointer),
    "ps_logits_weights": (ctypes.c_double, _pointer, _size, _real, _real, _pointer, _size),
    "ps_logits_filter": (ctypes.c_double, _pointer, _size, ctypes.c_double, _size, ctypes.c_double, _real),
    "ps_logits_draw": (c_int64, _pointer, _size, ctypes.c_double),
    "ps_pool": (None, _pointer, _pointer, _size, _size, _size, _pointer, _size),
    "ps_route": (
        *(None, _pointer, _pointer, _pointer, _size, _size, _size, c_int32, _real),
        *(_pointer, _pointer, _pointer),
    ),
    "ps_swiglu": (None, _pointer, _pointer, _size, _real, _pointer),
    "ps_attend": (None, _pointer, _pointer, _size),
    "ps_select": (None, _pointer, _size),
    "ps_reader_create": (_pointer, _size, _size),
    "ps_reader_stop": (None, _pointer),
    "ps_reader_destroy": (None, _pointer),
    "ps_reader_submit": (c_int64, _pointer, _pointer, _size, _size),
    "ps_reader_promote": (c_int64, _pointer, _size),
    "ps_reader_cancel": (c_int64, _pointer, _size),
    "ps_reader_poll": (c_int64, _pointer, _size),
    "ps_reader_wait_any": (c_int64, _pointer, _pointer, _size, _size),
    "ps_reader_forget": (c_int64, _pointer, _size, _pointer),
    "ps_reader_statistics": (None, _pointer, _pointer),
    "ps_reader_inject": (None, _pointer, _size, _size, _size, _size),
}


def find() -> Path:
    """Where the library lies: in the `native` folder of the package, wherever that was installed to."""
    folders = [Path(folder) / "native" for folder in penstock.__path__]
    for folder in folders:
        if (folder / NAME).is_file():
            return folder / NAME
    raise PenstockError(f"{folders[0] / NAME}: the native kernels have not been built.\n{HOW_TO_BUILD}")


def load(path: Path) -> ctypes.CDLL:
    """The library at `path`, with its entry points declared."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise PenstockError(
            f"{path}: the native kernels cannot be loaded: {error}.\n{HOW_TO_BUILD}"
        ) from None
    try:
        found = library.ps_abi_version()
    except AttributeError:
        found = "none"
    if found != ABI:
        raise PenstockError(
            f"{path}: interface version {found}, expected {ABI}: the native kernels are from another version.\n"
            f"{HOW_TO_BUILD}"
        )
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def native() -> ctypes.CDLL:
    """The loaded library.  Calls through it let other threads run."""
    return load(find())


# Arguments


def floats(x: Tensor, what: str) -> Tensor:
    """x as contiguous float32 on the CPU, ready for its pointer to be taken."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(f"{what}: expected float32 on cpu, found {x.dtype} on {x.device}")
    return x.contiguous()


def pointer(x: Tensor | None) -> int | None:
    """Address of a tensor's data; the tensor must outlive its use."""
    return None if x is None else x.data_ptr()


def expect(good: bool, message: str) -> None:
    """Kernels check nothing, so whoever calls them states here what must hold."""
    if not good:
        raise ValueError(message)

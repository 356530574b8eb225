"""Finds, loads and describes the native library, whose sources lie beside this file."""

import ctypes
import functools
import sys
from ctypes import c_char_p, c_double, c_float, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

import penstock
from penstock.errors import PenstockError
from penstock.native.structs import MIRRORED

ABI: Final = 7
NAME: Final = f"libpenstock_native.{'dylib' if sys.platform == 'darwin' else 'so'}"

HOW_TO_BUILD: Final = (
    "Build it with `pip install .`, or in a checkout with\n"
    "  cmake -S src/penstock/native -B build/native -DCMAKE_BUILD_TYPE=Release && cmake --build build/native"
)

_p, _n, _f, _d = c_void_p, c_int64, c_float, c_double

# Entry point: type of the result, types of the arguments.  The contracts stand in the C++ files.
_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "ps_instruction_set": (c_char_p,),
    "ps_step_bytes": (c_int64, _p, _n, _n),
    "ps_limit": (c_int64, c_char_p),
    "ps_input_bits": (c_int64, _n),
    # products and norms
    "ps_products": (None, _p, _n, _p, _n, _n, _p, _p, _n),
    "ps_rms_norm": (None, _p, _p, _n, _n, _f, _p, _n),
    "ps_angles": (None, _p, _p, _n, _n, _p, _p, _n),
    # the steps of a layer
    "ps_hyper_enter": (None, _p, _p, _p, _p, _n, _p, _p, _n),
    "ps_hyper_leave": (None, _p, _p, _p, _n, _n, _n, _n),
    "ps_attention_layer_run": (None, _p, _p, _n, _p, _n, _p, _p, _p, _n),
    "ps_project": (None, _p, _p, _n, _p, _n),
    "ps_keys_run": (None, _p, _p, _n, _p, _p, _n, _p, _p, _n, _n),
    "ps_route_rows": (None, _p, _p, _p, _n, _p, _p, _n),
    "ps_experts": (None, _p, _n, _p, _p, _n, _f, _p, _f, _p, _n, _p, _n, _n),
    "ps_expert_terms": (None, _p, _n, _p, _p, _n, _f, _p, _f, _p, _n, _p, _n),
    "ps_expert_sum": (None, _p, _p, _n, _n, _n, _p, _n, _p, _n),
    "ps_round_fp8": (None, _p, _n, _n, _n, _n),
    "ps_head_input": (None, _p, _p, _n, _p, _n),
    # a draft block
    "ps_draft_floats": (c_int64, _p, _n, _n),
    "ps_draft_run": (c_int64, _p, _p, _n, _p, _p, _p, _p, _n, _n, _f, _p, _p, _p, _p, _n),
    # sampling
    "ps_logits_top": (c_int64, _p, _n, _p),
    "ps_logits_weights": (c_double, _p, _n, _f, _f, _p, _n),
    "ps_logits_rows": (None, _p, _n, _n, _p, _p, _p, _n),
    "ps_logits_filter": (c_double, _p, _n, c_double, _n, c_double, _f),
    "ps_logits_draw": (c_int64, _p, _n, c_double),
    # threads
    "ps_chain": (c_uint64, _n),
    "ps_threads_check": (None, _n, _n, _p),
    "ps_threads_patience": (None, _n),
    "ps_wait_for": (c_int64, _p, _n, _n, _n),
    # a layer whose experts are divided between a device and the processors
    "ps_host_share": (c_int64, _p, _n, _n, _d),
    "ps_share_ends": (_d, _p, _n, _n, _d, _n),
    "ps_decide": (c_int64, _p, _n, _p, _n, _n, _p),
    "ps_take_slots": (None, _p, _n),
    "ps_take_turn": (c_int64, _p, _n, _n, _n, _n),
    "ps_finish_turns": (None,),
    # weights from one type to another
    "ps_encode": (c_int64, _p, _n, _n, _n, _p, _f, _p, _n),
    # the reader
    "ps_reader_create": (_p, _n, _n),
    "ps_reader_stop": (None, _p),
    "ps_reader_destroy": (None, _p),
    "ps_reader_submit": (c_int64, _p, _p, _n, _n),
    "ps_reader_promote": (c_int64, _p, _n),
    "ps_reader_cancel": (c_int64, _p, _n),
    "ps_reader_poll": (c_int64, _p, _n),
    "ps_reader_wait_any": (c_int64, _p, _p, _n, _n),
    "ps_reader_forget": (c_int64, _p, _n, _p),
    "ps_reader_statistics": (None, _p, _p),
    "ps_reader_inject": (None, _p, _n, _n, _n, _n),
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
    _check_sizes(library, path)
    return library


def _check_sizes(library: ctypes.CDLL, path: Path) -> None:
    """A structure that differs between the two languages would be read as nonsense."""
    library.ps_struct_size.restype, library.ps_struct_size.argtypes = c_int64, [c_char_p]
    for name, mirror in MIRRORED.items():
        found, expected = library.ps_struct_size(name.encode()), ctypes.sizeof(mirror)
        if found != expected:
            raise PenstockError(
                f"{path}: {name} has {found} bytes, expected {expected}: the native kernels are from another "
                f"version.\n{HOW_TO_BUILD}"
            )


@functools.cache
def native() -> ctypes.CDLL:
    """The loaded library.  Calls through it let other threads run."""
    return load(find())


def instruction_set() -> str:
    """What the products of this process run on: scalar, avx2, avx512_vnni, avx512, neon or neon_dot."""
    found = native().ps_instruction_set()
    if found is None:
        raise PenstockError(
            "PENSTOCK_ISA names an instruction set that is unknown or that this processor does not have.\n"
            "Expected scalar, avx2, avx512_vnni, avx512, neon or neon_dot; leave it unset for the best one."
        )
    return str(found.decode())

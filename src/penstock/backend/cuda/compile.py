"""CUDA C++ sources of this package → machine code for the card present, kept on disk between runs.

An entry is found by a hash of everything that made it: the source, all headers, the options, the card's
architecture, the driver and the compiler.  It carries that hash and a checksum of its code, so an entry that was
damaged, cut short or written for something else is built again, never loaded.

    >>> cache = KernelCache(folder, compiler, Target("sm_90a", "580.159", "13.0"))
    >>> cubin = cache.get("products.cu")
"""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import PenstockError

SOURCES = Path(__file__).parent / "kernels"
OPTIONS = ("--std=c++17", "--extra-device-vectorization", "-lineinfo", "-default-device")

_MAGIC = b"penstock cubin 1\n"

# (name, source, headers by name, options) → machine code
Compiler = Callable[[str, str, Mapping[str, str], tuple[str, ...]], bytes]


class CompileError(PenstockError):
    """Kernels that could not be compiled for this card."""


class Target(NamedTuple):
    """What compiled code depends on beside its source."""

    arch: str  # "sm_90a"
    driver: str
    compiler: str
    treated_as: int = 0  # 860: the kernels that a card of capability 8.6 would run; 0: the card's own


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / "cuda"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class KernelCache:
    """Compiled kernels of one target.  A folder that cannot be written to costs time, never an error."""

    folder: Path
    compiler: Compiler
    target: Target
    sources: Path = SOURCES
    options: tuple[str, ...] = OPTIONS
    say: Callable[[str], None] = _say

    def get(self, name: str, *extra: str) -> bytes:
        """The machine code of source file `name` with `extra` options, compiled now unless a good copy is on disk."""
        source = (self.sources / name).read_text()
        headers = {path.name: path.read_text() for path in sorted(self.sources.glob("*.cuh"))}
        treated = (f"-DCAPABILITY={self.target.treated_as}",) if self.target.treated_as else ()
        options = (f"--gpu-architecture={self.target.arch}", *treated, *self.options, *extra)
        key = _key(name, source, headers, options, self.target)
        path = self.folder / f"{Path(name).stem}-{self.target.arch}-{key[:16]}.cubin"
        code = _read(path, key)
        if code is None:
            start = time.perf_counter()
            code = self.compiler(name, source, headers, options)
            self.say(
                f"penstock: compiled {name} for {self.target.arch} in {time.perf_counter() - start:.1f} s"
            )
            _write(path, key, code)
        return code


def _key(name: str, source: str, headers: Mapping[str, str], options: tuple[str, ...], target: Target) -> str:
    digest = hashlib.sha256()
    parts = [
        name,
        source,
        *(text for item in sorted(headers.items()) for text in item),
        *options,
        *map(str, target),
    ]
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little"))  # so that text cannot move from one part to the next
        digest.update(raw)
    return digest.hexdigest()


def _read(path: Path, key: str) -> bytes | None:
    """The code of an entry, or None unless every byte of it is as it was written for this key."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    head = _MAGIC + key.encode() + b"\n"
    if not raw.startswith(head):
        return None
    code = raw[len(head) + 32 :]
    return code if code and hashlib.sha256(code).digest() == raw[len(head) : len(head) + 32] else None


def _write(path: Path, key: str, code: bytes) -> None:
    """Atomic: a reader sees the old entry, the new one or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
            file.write(_MAGIC + key.encode() + b"\n" + hashlib.sha256(code).digest() + code)
        os.replace(file.name, path)
    except OSError:
        return


# ── NVRTC ─────────────────────────────────────────────────────────────────────────────────────────────────


def nvrtc_compiler(name: str, source: str, headers: Mapping[str, str], options: tuple[str, ...]) -> bytes:
    """The `Compiler` that comes with PyTorch's CUDA wheels."""
    from cuda.bindings import nvrtc

    def call(result: tuple[Any, ...]) -> Any:
        error, *values = result
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{name}: NVRTC says {error.name}")
        return values[0] if values else None

    texts = [text.encode() for text in headers.values()]
    names = [header.encode() for header in headers]
    program = call(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(texts), texts, names))
    flags = [option.encode() for option in options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(call(nvrtc.nvrtcGetProgramLogSize(program)))
        call(nvrtc.nvrtcGetProgramLog(program, log))
        raise CompileError(
            f"{name}: the CUDA compiler refused it for {options[0]}:\n{log.decode(errors='replace')}"
        )
    code = bytearray(call(nvrtc.nvrtcGetCUBINSize(program)))
    call(nvrtc.nvrtcGetCUBIN(program, code))
    call(nvrtc.nvrtcDestroyProgram(program))
    return bytes(code)


def present_target() -> Target:
    """The current device, as far as compiled code depends on it."""
    import torch
    from cuda.bindings import driver, nvrtc

    from penstock.backend.cuda.device import card, pretended

    major, minor = torch.cuda.get_device_capability()
    suffix = "a" if major >= 9 else ""  # architecture-specific instructions exist from Hopper on
    _, version = driver.cuDriverGetVersion()
    _, *compiler = nvrtc.nvrtcVersion()
    treated_as = card().arch if pretended() else 0
    return Target(f"sm_{major}{minor}{suffix}", str(version), ".".join(map(str, compiler)), treated_as)

"""Does every compiler build the kernels, and do all of them give the same bits?

    python -m tests.compilers            # with every compiler that is found
    python -m tests.compilers g++ zig    # with those whose names contain one of these

Builds the library and its self-check, runs the self-check (for ARM under emulation) and compares its digests.  Needs
cmake; takes ninja, ccache and zig (from PyPI: `ziglang`) where they are.
"""

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "penstock" / "native"
BUILDS: Final = ROOT / "build" / "compilers"

EMULATOR: Final = ("qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu")
ARM: Final = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")
STATIC: Final = "-DCMAKE_EXE_LINKER_FLAGS=-static"
MACOS: Final = (
    *("-DCMAKE_SYSTEM_NAME=Darwin", "-DCMAKE_SYSTEM_PROCESSOR=arm64", "-DCMAKE_OSX_SYSROOT=/"),
    "-DCMAKE_INSTALL_NAME_TOOL=true",  # cmake wants it to be there; nothing is installed
)


@dataclass(frozen=True)
class Compiler:
    name: str
    command: str  # as CXX has it
    options: tuple[str, ...] = ()  # of cmake
    run: tuple[str, ...] | None = ()  # what runs its programs here; None: nothing does

    @property
    def found(self) -> bool:
        if "-m ziglang" in self.command and importlib.util.find_spec("ziglang") is None:
            return False
        needed = [self.command.split()[0]]
        if self.run:  # the emulator, and what brings the other machine's libraries
            needed += [self.run[0], "aarch64-linux-gnu-g++"]
        return all(shutil.which(program) for program in needed)


def compilers() -> Iterator[Compiler]:
    """All that somebody might have, oldest first."""
    gnu = [f"g++-{version}" for version in range(11, 17)]
    clang = [f"clang++-{version}" for version in range(14, 24)]
    for name in (*gnu, *clang):
        yield Compiler(name, name)
    yield Compiler("c++ without Linux", "c++", ("-DCMAKE_CXX_FLAGS=-DPENSTOCK_PORTABLE",))
    if platform.machine() == "x86_64":
        for name in ("aarch64-linux-gnu-g++", *(f"aarch64-linux-gnu-{name}" for name in gnu)):
            yield Compiler(name, name, (*ARM, STATIC), EMULATOR)
        for name in clang:
            target = (*ARM, STATIC, "-DCMAKE_CXX_COMPILER_TARGET=aarch64-linux-gnu")
            yield Compiler(f"{name} for aarch64", name, target, EMULATOR)
    zig = f"{sys.executable} -m ziglang c++ -target"
    for machine, options in (("x86_64", ()), ("aarch64", ARM)):
        own = machine == platform.machine()
        yield Compiler(
            f"zig for {machine}",
            f"{zig} {machine}-linux-gnu.2.28",
            () if own else options,
            () if own else EMULATOR if machine == "aarch64" else None,
        )
    yield Compiler("zig for macOS", f"{zig} aarch64-macos", MACOS, None)


class Failed(Exception):
    """With the end of what the tool said."""


def call(*command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise Failed(f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def build(compiler: Compiler) -> Path:
    """The folder that its library and, unless nothing could run it, the self-check are in."""
    folder = BUILDS / compiler.name.replace(" ", "-")
    tools = ["-GNinja"] if shutil.which("ninja") else []
    if shutil.which("ccache") and "ziglang" not in compiler.command:
        tools.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    call(
        *(
            "cmake",
            "-S",
            str(SOURCE),
            "-B",
            str(folder),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DPENSTOCK_IN_PLACE=OFF",
        ),
        *(*tools, *compiler.options),
        environment={**os.environ, "CXX": compiler.command},
    )
    targets = ["penstock_native", *(["native_selfcheck"] if compiler.run is not None else [])]
    call("cmake", "--build", str(folder), "--parallel", "--target", *targets)
    return folder


def shared_functions(folder: Path) -> list[str]:
    """Functions in the objects of one instruction set that the linker could take for all.  There must be none."""
    objects = [str(path) for path in folder.glob("CMakeFiles/kernels_*.dir/*.o")]
    lines = call("nm", "-C", "--defined-only", *objects).splitlines()
    return [line.split(" W ")[1] for line in lines if " W " in line]


def digests(program: Path, run: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """(instruction set, what was computed) → digest"""
    lines = [line.split() for line in call(*run, str(program)).splitlines()]
    return {(line[0], line[1]): line[2] for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    wanted = parser.parse_args().names
    chosen = [each for each in compilers() if not wanted or any(name in each.name for name in wanted)]
    missing = [each.name for each in chosen if not each.found]
    expected: dict[str, str] = {}  # by what was computed
    bad, built = 0, 0
    for compiler in chosen:
        if compiler.name in missing:
            continue
        begin = time.monotonic()
        print(f"{compiler.name:32}", end="", flush=True)
        try:
            folder = build(compiler)
            found: dict[tuple[str, str], str] = {}
            if compiler.run is not None:
                found = digests(folder / "native_selfcheck", compiler.run)
            shared = shared_functions(folder) if compiler.run == () and shutil.which("nm") else []
        except Failed as failure:
            print(f"FAILED\n{failure}")
            bad += 1
            continue
        built += 1
        sets = list(dict.fromkeys(name for name, _ in found))
        for (_, what), digest in found.items():
            expected.setdefault(what, digest)
        different = [f"{name} {what}" for (name, what), digest in found.items() if digest != expected[what]]
        bad += bool(different) + bool(shared)
        if different:
            print(f"OTHER BITS: {', '.join(different)}")
        elif shared:
            print(f"SHARED BETWEEN INSTRUCTION SETS: {', '.join(shared)}")
        else:
            what = f"same bits: {', '.join(sets)}" if sets else "builds; nothing here can run it"
            print(f"{what} ({time.monotonic() - begin:.0f} s)")
    if missing:
        print(f"Skipped, because they are not installed: {', '.join(missing)}.")
        print("Debian: g++-N, clang-N; for ARM: g++-aarch64-linux-gnu, qemu-user.  PyPI: ziglang.")
    if not built and not bad:
        print("No compiler was found.")
    sys.exit(bool(bad) or not built)


if __name__ == "__main__":
    main()

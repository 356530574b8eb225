"""Installs a wheel as a stranger would, into an empty environment with no compiler in sight, and asks it something.

    python release/try_wheel.py dist/penstock-….whl

Dependencies come from PyPI.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

QUESTIONS = {"What is 17 + 25?": "42"}  # that the pocket model gets right


def try_wheel(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        programs = home / "venv" / "bin"
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PENSTOCK", "CXX"))
        }
        environment |= {"PATH": str(programs), "XDG_CACHE_HOME": str(home / "cache")}

        def call(program: str, *arguments: str) -> str:
            command = [str(programs / program), *arguments]
            done = subprocess.run(
                command, cwd=home, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            return done.stdout.strip()

        call("pip", "install", "--quiet", "--only-binary", ":all:", str(wheel))
        print(call("penstock", "--version"))
        print(call("python", "-c", "from penstock.native.library import instruction_set as i; print(i())"))
        for question, answer in QUESTIONS.items():
            said = call("penstock", "run", question)
            print(f"{question} {said}")
            if answer not in said:
                sys.exit(f"expected {answer}")


if __name__ == "__main__":
    try_wheel(Path(sys.argv[1]).resolve(strict=True))

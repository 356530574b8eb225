"""The script of the page about clusters, started by torchrun."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import penstock

SOURCE = Path(penstock.__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
PATIENCE = 300


def script() -> str:
    blocks = PAGE.read_text().split("```sh\n")[1:]
    (found,) = (block.split("```")[0] for block in blocks if "# cluster.sh" in block)
    return found


def test_two_processes_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "cluster.sh").write_text(script())
    command = tmp_path / "penstock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    command.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("MODEL", "SECRET")},
        "PYTHONPATH": str(SOURCE),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = ["--temperature", "0", "--context", "512"]
    done = subprocess.run(
        [*launcher, "--no-python", "sh", str(tmp_path / "cluster.sh"), "run", "What is 17 + 25?", *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "42" in done.stdout
    assert "2 of 2 stages are here" in done.stderr

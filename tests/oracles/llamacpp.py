"""The llama.cpp oracle: GGUF files through the llama.cpp that the xllamacpp wheel contains.

Every call runs in a child process, because llama.cpp answers an unusual model with SIGFPE or abort(); a crash
or refusal becomes a `LlamaCppError` that ends with llama.cpp's own last words.

Against the Hugging Face model an F32 file with F32 cache agrees to 1.3e-5 at 60 tokens, 2.7e-5 at 300 and
7e-5 at 1,100; the growth is how the rotary angle is rounded.  An F16 cache moves scores enough to choose
other experts and index rows, so compare it only where nothing is chosen by score.

What llama.cpp needs of a `deepseek4` file beyond the format: hc_mult 4, at least one layer with ratio 4,
hash-routed layers first and without `exp_probs_b`, an indexer head dim that is a multiple of 64 and differs
from the head dim, F32 for everything one-dimensional.  A wrong type may load and die later, in `logits`.  The
YaRN betas of the file are ignored (32 and 1 always) unless `yarn_betas` is given.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

WORKER = Path(__file__).with_name("llamacpp_worker.py")
TIMEOUT = 300  # seconds; tiny models need one or two

CacheType = Literal["f32", "f16"]


class LlamaCppError(RuntimeError):
    """llama.cpp refused the file or died; the message ends with the tail of its log."""


def logits(
    path: str | Path,
    ids: Sequence[int],
    *,
    kv: CacheType = "f32",
    threads: int = 1,
    chunks: Sequence[int] | None = None,
    yarn_betas: tuple[float, float] | None = None,
) -> NDArray[np.float32]:
    """[len(ids), vocab].  `chunks` are lengths that sum to len(ids), decoded one after the other."""
    return _run("logits", path, ids, kv=kv, threads=threads, chunks=chunks, yarn_betas=yarn_betas)


def mtp_logits(
    path: str | Path,
    ids: Sequence[int],
    *,
    draft: str | Path | None = None,
    kv: CacheType = "f32",
    threads: int = 1,
    chunks: Sequence[int] | None = None,
    yarn_betas: tuple[float, float] | None = None,
) -> NDArray[np.float32]:
    """[len(ids) − 1, vocab] of the MTP block; row i has seen tokens 0…i+1 and predicts token i+2.

    The block comes from the MTP-only file `draft`, or else from the last block of `path`.  A file has one
    `output_hc_*` head: in a shared file llama.cpp ends the MTP block with the trunk's, so only a `draft` file
    can give it its own.  `chunks` are those of the trunk; the block itself runs in one piece.
    """
    options = {"kv": kv, "threads": threads, "chunks": chunks, "yarn_betas": yarn_betas}
    if draft is None:
        return _run("mtp_logits", path, ids, mtp=True, **options)
    return _run("mtp_logits", path, ids, draft=str(Path(draft).resolve()), **options)


def generate(path: str | Path, ids: Sequence[int], count: int, *, kv: CacheType = "f32") -> list[int]:
    """The `count` tokens that greedy decoding appends to `ids`."""
    return [int(i) for i in _run("generate", path, ids, kv=kv, count=count)]


def loads(path: str | Path, *, mtp: bool = False) -> None:
    """Load the file, its MTP block too if `mtp`, and do nothing with it; raises when llama.cpp refuses."""
    _run("loads", path, [], mtp=mtp)


def _run(action: str, path: str | Path, ids: Sequence[int], **options: Any) -> NDArray[np.float32]:
    request: dict[str, Any] = {
        "action": action,
        "path": str(Path(path).resolve()),
        "ids": [int(i) for i in ids],
    }
    request |= {"kv": "f32", "threads": 1, "mtp": False, "draft": None, "yarn_betas": None, "chunks": None}
    request |= options
    chunks = [int(n) for n in request["chunks"] or [len(ids)]]
    if sum(chunks) != len(ids):
        raise ValueError(f"chunks {chunks} sum to {sum(chunks)}, not to {len(ids)}")
    request["chunks"] = chunks

    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.npy")
        question.write_text(json.dumps(request))
        # Spinning OpenMP threads make every neighbour on the machine ten times slower; a backtrace, made by
        # gdb where there is one, would hide the failed assertion.
        done = subprocess.run(
            [sys.executable, "-P", str(WORKER), str(question), str(answer)],
            env=os.environ | {"OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise LlamaCppError(f"{action} {path}: llama.cpp {_ending(done.returncode)}\n{tail}")
        return np.asarray(np.load(answer), np.float32)


def _ending(status: int) -> str:
    return f"died with {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"

"""The readers under test: for each, valid inputs to start from and how to read a changed one."""

import json
import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from penstock.backend.base import Choice, Edits
from penstock.backend.cpu.backend import CpuBackend
from penstock.cluster.agreement import PROTOCOL, Hello
from penstock.cluster.choosing import choose as choose_token
from penstock.cluster.choosing import ridden, ride
from penstock.cluster.message import Message
from penstock.engine.engine import Engine
from penstock.errors import ModelFormatError
from penstock.hub.choices import choices, choose, draft_for
from penstock.hub.listing import parse_listing
from penstock.machine.measured_once import _noted as measured_numbers
from penstock.server.api.responses.store import read_kept
from penstock.storage.usage import Usage, learn_usage, recall_usage, usage_path
from penstock.tokenizer import tokenizer_from_gguf
from penstock.weights.config_json import config_from_json
from penstock.weights.gguf_reader import read_gguf
from penstock.weights.imatrix import Entry, Imatrix, read_imatrix, write_imatrix
from penstock.weights.opening import open_checkpoint
from penstock.weights.safetensors_reader import parse_json, read_safetensors
from penstock.weights.synth import synth
from tests.weights.test_config import OFFICIAL

SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


@dataclass(frozen=True)
class Target:
    name: str
    seeds: list[bytes]
    run: Callable[[bytes], None]
    share: float  # of the inputs


class _SparseFile:
    """A file whose head is replaced before each run while its tail, the tensor data, stays a hole."""

    def __init__(self, folder: Path, name: str, tail: int):
        self.path, self.tail = folder / name, tail

    def write(self, head: bytes) -> Path:
        with open(self.path, "wb") as file:
            file.write(head)
            file.truncate(len(head) + self.tail)
        return self.path


def make_targets(folder: Path) -> list[Target]:
    """Targets that keep their files in `folder`."""
    model = folder / "tiny.gguf"
    synth(model, width="tiny", layers=3, ratios=(0, 4, 128), overwrite=True)
    parsed = read_gguf(model)
    start = min(info.offset for info in parsed.tensors.values())
    head, tail = model.read_bytes()[:start], model.stat().st_size - start
    small = _small_gguf(folder)

    engine = Engine(model, max_rewind=4, learn="off")
    session = engine.session()
    session.feed([1, 2, 3, 4, 5, 6], logits="none")
    session.save(folder / "session")
    snapshot = (folder / "session").read_bytes()
    snapshot_head = snapshot[: 8 + int.from_bytes(snapshot[:8], "little")]

    gguf, whole = _SparseFile(folder, "head.gguf", 1 << 16), _SparseFile(folder, "model.gguf", tail)
    tensors = _SparseFile(folder, "x.safetensors", 1 << 16)
    saved = _SparseFile(folder, "saved", len(snapshot) - len(snapshot_head))
    tokenizer_keys = {key: value for key, value in parsed.metadata.items() if key.startswith("tokenizer.")}

    def tokenizer(data: bytes) -> None:
        values = parse_json(data, "fuzz")
        tokenizer_from_gguf(values if isinstance(values, dict) else {}, "fuzz")

    def config(data: bytes) -> None:
        values = parse_json(data, "fuzz")
        config_from_json(values if isinstance(values, dict) else {}, "fuzz")

    def listing(data: bytes) -> None:
        """What a hub says, up to the paths that files would get."""
        root = Path("/cache/snapshots/commit")
        for choice in (found := choices(parse_listing(data, "fuzz/model").files)):
            draft_for(choice, found)
            for file in choice.files:
                assert (root / file.path).resolve().is_relative_to(root)
        choose(found, "q4", "fuzz/model", {})

    def unsealed(data: bytes) -> None:
        """A snapshot whose checksum somebody made fit: everything behind it must hold as well."""
        with patch("penstock.kv.snapshot._check_sum"):
            engine.load_session(saved.write(data))

    def kept(data: bytes) -> None:
        """A response as it lies in a file, or what is compressed there."""
        if read_kept(zlib.compress(data) if data.startswith(b"[") else data) is None:
            raise ModelFormatError("not believed")

    def noted(data: bytes) -> None:
        """What was measured here, as it stands in the user's cache folder: believed whole or not at all."""
        values = parse_json(data, "fuzz")
        for value in values.values() if isinstance(values, dict) else ():
            _ignore(measured_numbers(value, 2))

    def used(data: bytes) -> None:
        with patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder)}):
            usage_path("fuzz").write_bytes(data)
            if recall_usage("fuzz", 2, 4) is None:
                raise ModelFormatError("not believed")

    with patch.dict(os.environ, {"XDG_CACHE_HOME": str(folder)}):
        learn_usage("fuzz", Usage(np.ones((2, 4), np.float32), 5.0, 3.0))
        usage = usage_path("fuzz").read_bytes()
    notes = {"a": {"numbers": [1.0, 2.0], "busy_trials": 0}, "b": [1e9, 0.1]}
    response = json.dumps([{"id": "resp_1", "output": [{"id": "msg_1"}]}, [{"id": "msg_0"}]]).encode()
    matrix, dat = _imatrices(folder)
    arrays = {"tokens": np.arange(3), "streams": np.zeros((3, 4), "f4")}
    greeting = Hello(PROTOCOL, "1.0", "box", {"layers": 43}, True, None, None, 1 << 30, 0.01, 0.5)
    greets = asdict(greeting) | {"layers": "0:10,20:30", "loaded": "auto"}
    said = [Message("step", {"number": 1, "slots": [0]}, arrays), Message("hello", greets, {})]
    return [
        Target(
            "message", [each.encode().tobytes() for each in said], lambda data: _ignore(_message(data)), 0.02
        ),
        Target("choices", [_choices().encode().tobytes()], _chosen, 0.02),
        Target("usage", [usage], used, 0.01),
        Target("response", [zlib.compress(response), response], kept, 0.01),
        Target("notes", [json.dumps(notes).encode()], noted, 0.01),
        Target("imatrix", [matrix], lambda data: _ignore(read_imatrix(_written(folder, data))), 0.01),
        Target("imatrix.dat", [dat], lambda data: _ignore(read_imatrix(_written(folder, data))), 0.02),
        Target("gguf", [small], lambda data: _ignore(read_gguf(gguf.write(data))), 0.38),
        Target("model", [head], lambda data: _ignore(open_checkpoint(whole.write(data))), 0.05),
        Target("safetensors", [_header()], lambda data: _ignore(read_safetensors(tensors.write(data))), 0.3),
        Target(
            "snapshot", [snapshot_head], lambda data: _ignore(engine.load_session(saved.write(data))), 0.03
        ),
        Target("unsealed", [snapshot_head], unsealed, 0.05),
        Target("hub", [_listing()], listing, 0.04),
        Target("config.json", [json.dumps(OFFICIAL).encode()], config, 0.09),
        Target(
            "tokenizer", [json.dumps(tokenizer_keys, default=lambda v: v.tolist()).encode()], tokenizer, 0.01
        ),
    ]


def _written(folder: Path, data: bytes) -> Path:
    path = folder / "imatrix"
    path.write_bytes(data)
    return path


def _imatrices(folder: Path) -> tuple[bytes, bytes]:
    """A small importance matrix in both formats."""
    import numpy as np

    from tests.weights.test_imatrix import as_dat

    entries = {
        "a.weight": Entry(np.ones((1, 8), np.float32), np.array([3], np.float32)),
        "b_exps.weight": Entry(np.ones((4, 8), np.float32), np.array([0, 1, 2, 3], np.float32)),
    }
    imatrix = Imatrix(entries, ("text",), 5, 512)
    write_imatrix(imatrix, folder / "seed")
    return (folder / "seed").read_bytes(), as_dat(imatrix)


ROW = np.linspace(-3, 3, 70, dtype=np.float32)  # logits


def _choices() -> Message:
    """A step with what is to be chosen from its rows: drawn, and drawn after edits from some of the tokens."""
    ids = np.array([3, 69])
    edits = Edits(ids, np.array([True, False]), np.array([0.0, 1.5]), np.array([2.0, 0.0], np.float32))
    mask = np.array([0xFFFF, 0, 0x3F], np.uint32)
    message = Message("step", {})
    ride(message, {7: [Choice(0.8, 5, 0.9, 0.1, 0.5)], 8: [Choice(0.0, edits=edits, mask=mask)]})
    return message


def _chosen(data: bytes) -> None:
    """As the last stage does it."""
    backend = CpuBackend(1)
    for _, _, choice in ridden(Message.decode(np.frombuffer(data, np.uint8)), len(ROW)):
        token = choose_token(backend.sampling, ROW, choice).token
        assert -1 <= token < len(ROW)


def _message(data: bytes) -> Message:
    """What a machine of a cluster says; a greeting is read as the head does."""
    found = Message.decode(np.frombuffer(data, np.uint8))
    if found.kind == "hello":
        Hello.read(found.fields)
    return found


def _ignore(_: Any) -> None:
    pass


def _small_gguf(folder: Path) -> bytes:
    """A header with every kind of value and a few tensors."""
    from penstock.weights.gguf_writer import PlannedTensor, write_gguf
    from penstock.weights.types import F32, IQ2_XXS, Q8_0
    from tests.weights.test_gguf import METADATA

    tensors = [
        PlannedTensor(name, kind, shape, lambda n=kind.nbytes(shape): [np.zeros(n, np.uint8)])  # type: ignore[misc]
        for name, kind, shape in (("a", F32, (7,)), ("b", Q8_0, (4, 64)), ("c", IQ2_XXS, (2, 3, 256)))
    ]
    path = folder / "small.gguf"
    write_gguf(path, METADATA, tensors)
    return path.read_bytes()


def _listing() -> bytes:
    large = {"lfs": {"sha256": "0" * 64, "size": 1 << 36, "pointerSize": 134}}
    paths = ("a/M-Q4_K_M-00001-of-00002.gguf", "a/M-Q4_K_M-00002-of-00002.gguf", "M-Q8_0.gguf", "M-MTP.gguf")
    files: list[dict[str, Any]] = [
        {"rfilename": path, "size": 1 << 36, "blobId": "1" * 40, **large} for path in paths
    ]
    files.append({"rfilename": "config.json", "size": 700, "blobId": "2" * 40})
    return json.dumps({"sha": "3" * 40, "siblings": files}).encode()


def _header() -> bytes:
    entries = {
        "__metadata__": {"format": "pt"},
        "model.a": {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, 128]},
        "model.b": {"dtype": "F8_E4M3", "shape": [64], "data_offsets": [128, 192]},
        "c": {"dtype": "BF16", "shape": [], "data_offsets": [192, 194]},
    }
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text

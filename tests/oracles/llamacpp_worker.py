"""Child process of `llamacpp`: runs one request through the llama.cpp inside the xllamacpp wheel.

    python llamacpp_worker.py REQUEST.json ANSWER.npy

The wheel exports llama.cpp's C symbols but ships no header, and the parameter structures change between
versions.  They are therefore treated as opaque blocks: defaults come from the library, some fields are
written at known offsets, and a library whose defaults do not sit at those offsets is refused.  Blocks are
larger than the structures; passed by value as last argument, or returned, the excess is never looked at.
"""

import ctypes
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp
from numpy.typing import NDArray

GGML_TYPES = {"f32": 0, "f16": 1}
CONTEXT_TYPE_MTP = 1
FLASH_ATTENTION_OFF = 0


class Params(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 64),)


class Batch(ctypes.Structure):
    """llama_batch.  The MTP graph takes both token ids and rows of hidden streams."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


# Field: (offset, struct format, default that must be found there)
MODEL_FIELDS = {
    "n_gpu_layers": (16, "i", -1),
    "vocab_only": (72, "?", False),
    "check_tensors": (73, "?", False),
    "use_extra_bufts": (74, "?", True),
    "no_host": (75, "?", False),
    "no_alloc": (76, "?", False),
    "load_mtp": (77, "?", False),
}
CONTEXT_FIELDS = {
    "n_ctx": (0, "I", 512),
    "n_batch": (4, "I", 2048),
    "n_ubatch": (8, "I", 512),
    "n_seq_max": (12, "I", 1),
    "n_outputs_max": (20, "I", 0),
    "n_outputs_max_per_seq": (24, "I", 1),
    "n_threads": (28, "i", 4),
    "n_threads_batch": (32, "i", 4),
    "ctx_type": (36, "i", 0),
    "rope_scaling_type": (40, "i", -1),
    "flash_attn_type": (52, "i", -1),
    "yarn_beta_fast": (72, "f", -1.0),
    "yarn_beta_slow": (76, "f", -1.0),
    "yarn_orig_ctx": (80, "I", 0),
    "defrag_thold": (84, "f", -1.0),
    "type_k": (104, "i", GGML_TYPES["f16"]),
    "type_v": (108, "i", GGML_TYPES["f16"]),
    "embeddings": (136, "?", False),
    "offload_kqv": (137, "?", True),
    "no_perf": (138, "?", True),
    "op_offload": (139, "?", True),
    "swa_full": (140, "?", True),
    "kv_unified": (141, "?", False),
}
Fields = dict[str, tuple[int, str, Any]]


def _params(default: Any, fields: Fields, **values: Any) -> Params:
    """The library's defaults with `values` written over them."""
    default.restype = Params
    params = default()
    assert isinstance(params, Params)
    for name, (offset, code, expected) in fields.items():
        (found,) = struct.unpack_from(code, params, offset)
        if found != expected:
            sys.exit(
                f"{default.__name__}: {name} at byte {offset} is {found}, expected {expected}: layout changed"
            )
    for name, value in values.items():
        offset, code, _ = fields[name]
        struct.pack_into(code, params, offset, value)
    return params


def _library() -> ctypes.CDLL:
    (path,) = Path(xllamacpp.__path__[0]).glob("*.so")
    lib = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Params]),
        "llama_init_from_model": (pointer, [pointer, Params]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (integer, [pointer]),
        "llama_model_n_embd_out": (integer, [pointer]),
        "llama_decode": (integer, [pointer, Batch]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [pointer, integer]),
        # not in the C header: void llama_set_embeddings_nextn(llama_context *, bool value, bool masked)
        "_Z26llama_set_embeddings_nextnP13llama_contextbb": (None, [pointer, ctypes.c_bool, ctypes.c_bool]),
        # float * llama_get_embeddings_nextn(llama_context *)
        "_Z26llama_get_embeddings_nextnP13llama_context": (ctypes.POINTER(ctypes.c_float), [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_backend_init()
    return lib


class Model:
    def __init__(self, path: str, load_mtp: bool) -> None:
        self.lib = _library()
        params = _params(self.lib.llama_model_default_params, MODEL_FIELDS, n_gpu_layers=0, load_mtp=load_mtp)
        self.handle = self.lib.llama_model_load_from_file(path.encode(), params)
        if not self.handle:
            sys.exit(f"llama.cpp refuses {path}")
        self.vocab: int = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.handle))
        self.width: int = self.lib.llama_model_n_embd_out(self.handle)


class Context:
    """One sequence with its own KV cache."""

    def __init__(self, model: Model, length: int, request: dict[str, Any], **values: Any) -> None:
        self.model, self.lib = model, model.lib
        values["type_k"] = values["type_v"] = GGML_TYPES[request["kv"]]
        if request["yarn_betas"] is not None:
            values["yarn_beta_fast"], values["yarn_beta_slow"] = request["yarn_betas"]
        params = _params(
            self.lib.llama_context_default_params,
            CONTEXT_FIELDS,
            n_ctx=length,
            n_batch=length,
            n_ubatch=length,
            n_outputs_max_per_seq=0,  # 0: logits of every token; the default allows one
            n_threads=request["threads"],
            n_threads_batch=request["threads"],
            flash_attn_type=FLASH_ATTENTION_OFF,
            **values,
        )
        self.handle = self.lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            sys.exit("llama.cpp cannot create a context")

    def decode(
        self, ids: Sequence[int], start: int, streams: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Logits [len(ids), vocab] of `ids` at positions from `start`."""
        n = len(ids)
        zero = ctypes.c_int32(0)
        batch = Batch(
            n_tokens=n,
            token=(ctypes.c_int32 * n)(*ids),
            pos=(ctypes.c_int32 * n)(*range(start, start + n)),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.pointer(zero)] * n),
            logits=(ctypes.c_int8 * n)(*[1] * n),
        )
        if streams is not None:
            rows = np.ascontiguousarray(streams, np.float32)
            batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        status = self.lib.llama_decode(self.handle, batch)
        if status != 0:
            sys.exit(f"llama_decode returned {status} for {n} tokens at position {start}")
        return np.stack(
            [_copy(self.lib.llama_get_logits_ith(self.handle, i), self.model.vocab) for i in range(n)]
        )

    def keep_streams(self) -> None:
        """Make `streams` available after each `decode`."""
        self.lib._Z26llama_set_embeddings_nextnP13llama_contextbb(self.handle, True, False)

    def streams(self, n: int) -> NDArray[np.float32]:
        """[n, hc_mult·hidden]: the trunk's last hyper-connection streams of the last `decode`."""
        found = self.lib._Z26llama_get_embeddings_nextnP13llama_context(self.handle)
        return _copy(found, n * self.model.width).reshape(n, self.model.width)


def _copy(values: Any, n: int) -> NDArray[np.float32]:
    return np.ctypeslib.as_array(values, shape=(n,)).copy()


def _chunks(request: dict[str, Any]) -> Iterator[tuple[int, list[int]]]:
    start = 0
    for n in request["chunks"]:
        yield start, request["ids"][start : start + n]
        start += n


def logits(model: Model, request: dict[str, Any]) -> NDArray[np.float32]:
    context = Context(model, len(request["ids"]), request)
    return np.concatenate([context.decode(ids, start) for start, ids in _chunks(request)])


def mtp_logits(model: Model, request: dict[str, Any]) -> NDArray[np.float32]:
    """Row i comes from the streams of token i and the id of token i + 1.

    llama.cpp's own driver puts that pair at position i + 1, after a row of zeros with token 0; the block's
    attention is relative, so starting at 0 without that row is the plain definition.
    """
    ids = request["ids"]
    trunk = Context(model, len(ids), request)
    trunk.keep_streams()
    streams = []
    for start, part in _chunks(request):
        trunk.decode(part, start)
        streams.append(trunk.streams(len(part)))
    block = Model(request["draft"], load_mtp=True) if request["draft"] else model
    draft = Context(block, len(ids), request, ctx_type=CONTEXT_TYPE_MTP)
    return draft.decode(ids[1:], 0, np.concatenate(streams)[:-1])


def generate(model: Model, request: dict[str, Any]) -> NDArray[np.float32]:
    ids, count = list(request["ids"]), request["count"]
    context = Context(model, len(ids) + count, request)
    row = context.decode(ids, 0)[-1]
    for _ in range(count):
        ids.append(int(row.argmax()))
        row = context.decode(ids[-1:], len(ids) - 1)[-1]
    return np.asarray(ids[-count:], np.float32)


def main(request_path: str, answer_path: str) -> None:
    request = json.loads(Path(request_path).read_text())
    actions = {"logits": logits, "mtp_logits": mtp_logits, "generate": generate}
    action = request["action"]
    model = Model(request["path"], load_mtp=request["mtp"])
    answer = np.zeros(0, np.float32) if action == "loads" else actions[action](model, request)
    np.save(answer_path, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])

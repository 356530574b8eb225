"""Child process of `vs_llamacpp`: one engine, one model, told what to time.

    python -m benchmarks.engine_worker '{"engine": "penstock", "model": "m.gguf", "threads": 2, …}'

Every line on stdin is a request, every line on stdout its answer, both JSON.  The first answer, without a request,
comes when the first token is there and says how long loading took.

    {"do": "prefill", "ids": […]}                  → {"seconds": 3.1}    a new sequence, logits of the last token
    {"do": "decode", "prompt": […], "ids": […]}    → {"seconds": 1.6}    the ids one by one after an untimed prompt

Runs in whatever environment has the engine, so nothing of the project is imported before it is needed.
"""

import ctypes
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

F16 = 1  # ggml's number of the type
FLASH_ATTENTION_ON = 1
BATCH = 512


class Runner(Protocol):
    """What both engines can do.  `feed` continues the sequence and leaves the last token's logits in memory."""

    version: str
    features: str  # instruction sets, in the engine's own words

    def restart(self) -> None: ...

    def feed(self, ids: Sequence[int]) -> None: ...


class Penstock:
    def __init__(self, request: dict[str, Any]):
        import penstock

        self.version, self.features = penstock.__version__, ""
        self.engine = penstock.Engine(
            request["model"], threads=request["threads"], kv_dtype="f16", prefill_chunk=BATCH
        )
        self.restart()

    def restart(self) -> None:
        self.session = self.engine.session()

    def feed(self, ids: Sequence[int]) -> None:
        self.session.feed(ids, logits="last")


class LlamaCpp:
    """llama.cpp's C interface, from whichever package: 16-bit cache, flash attention, mapped file, batches of 512."""

    def __init__(self, request: dict[str, Any]):
        settings = {
            "n_ctx": request["context"],
            "n_batch": BATCH,
            "n_ubatch": BATCH,
            "n_threads": request["threads"],
            "n_threads_batch": request["threads"],
            "type_k": F16,
            "type_v": F16,
            "flash_attn_type": FLASH_ATTENTION_ON,
        }
        load = _from_llama_cpp_python if request["engine"] == "llama-cpp-python" else _from_xllamacpp
        self.lib, self.version, self.features, self.context = load(request, settings)
        self.memory = self.lib.llama_get_memory(self.context)

    def restart(self) -> None:
        self.lib.llama_memory_clear(self.memory, True)

    def feed(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), BATCH):
            part = ids[start : start + BATCH]
            tokens = (ctypes.c_int32 * len(part))(*part)
            status = self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(tokens, len(part)))
            if status != 0:
                sys.exit(f"llama_decode returned {status} for {len(part)} tokens")
        self.lib.llama_get_logits_ith(self.context, -1)  # waits for the result


Loaded = tuple[Any, str, str, Any]  # functions, version, features, llama_context


def _from_llama_cpp_python(request: dict[str, Any], settings: dict[str, int]) -> Loaded:
    """The package declares llama.cpp's structures itself, for the version it was built with."""
    lib: Any = importlib.import_module("llama_cpp")
    lib.llama_backend_init()
    for_model = lib.llama_model_default_params()
    for_model.n_gpu_layers, for_model.use_extra_bufts = 0, request["repack"]
    model = lib.llama_model_load_from_file(request["model"].encode(), for_model)
    if not model:
        sys.exit(f"llama.cpp refuses {request['model']}")
    for_context = lib.llama_context_default_params()
    for name, value in settings.items():
        setattr(for_context, name, value)
    context = lib.llama_init_from_model(model, for_context)
    base = ctypes.CDLL(str(next((Path(lib.__file__).parent / "lib").glob("libggml-base.so*"))))
    base.ggml_commit.restype = ctypes.c_char_p
    version = f"{lib.__version__}, ggml commit {base.ggml_commit().decode()}"
    return lib, version, lib.llama_print_system_info().decode(), context


def _from_xllamacpp(request: dict[str, Any], settings: dict[str, int]) -> Loaded:
    """The wheel has no structures, only symbols; the test suite's oracle knows where the fields are."""
    from tests.oracles import llamacpp_worker as oracle

    lib = oracle._library()
    pointer = ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_batch_get_one": (oracle.Batch, [ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]),
        "llama_print_system_info": (ctypes.c_char_p, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    for_model = oracle._params(
        lib.llama_model_default_params,
        oracle.MODEL_FIELDS,
        n_gpu_layers=0,
        use_extra_bufts=request["repack"],
    )
    model = lib.llama_model_load_from_file(request["model"].encode(), for_model)
    if not model:
        sys.exit(f"llama.cpp refuses {request['model']}")
    for_context = oracle._params(lib.llama_context_default_params, oracle.CONTEXT_FIELDS, **settings)
    context = lib.llama_init_from_model(model, for_context)
    version = importlib.metadata.version("xllamacpp")  # its last number is llama.cpp's build number
    return lib, version, lib.llama_print_system_info().decode(), context


def private_memory() -> int:
    """Bytes that belong to this process alone: not the mapped file."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")
    )
    return int(line.split()[1]) << 10


def answer(runner: Runner, request: dict[str, Any]) -> dict[str, Any]:
    runner.restart()
    if request["do"] == "prefill":
        begin = time.perf_counter()
        runner.feed(request["ids"])
    else:
        runner.feed(request["prompt"])
        begin = time.perf_counter()
        for token in request["ids"]:
            runner.feed([token])
    return {"seconds": time.perf_counter() - begin, "private_bytes": private_memory()}


def main() -> None:
    request = json.loads(sys.argv[1])
    runner: Runner
    if request["engine"] == "penstock":
        import penstock  # noqa: F401 - imports are not part of loading

        begin = time.perf_counter()
        runner = Penstock(request)
    else:
        begin = time.perf_counter()
        runner = LlamaCpp(request)
    loaded = time.perf_counter()
    runner.feed([request["first"]])
    done = time.perf_counter()
    first = {
        "load_s": loaded - begin,
        "first_s": done - loaded,
        "version": runner.version,
        "features": runner.features,
    }
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(runner, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

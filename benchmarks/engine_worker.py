"""Child process of `vs_llamacpp` and `streaming`: one engine, one model, told what to time.

    python -m benchmarks.engine_worker '{"engine": "penstock", "model": "m.gguf", "threads": 2, …}'

Every line on stdin is a request, every line on stdout its answer, both JSON.  The first answer, without a request,
comes when the first token is there and says how long loading took.

    {"do": "prefill", "ids": […]}                  → {"seconds": 3.1}    a new sequence, logits of the last token
    {"do": "decode", "prompt": […], "ids": […]}    → {"seconds": 1.6}    the ids one by one after an untimed prompt
    {"do": "together", "prompts": […], "rows": […]} → {"seconds": 2.4}   one id per sequence and step; Penstock only
    {"do": "digest", "prompt": […], "ids": […]}    → {"sha256": "…"}     of all logits on the way; Penstock only

Times come with "step_s", each step's own; with "disk_bytes", what the system read for this process; and with what the
engine counted meanwhile.

Runs in whatever environment has the engine, so nothing of the project is imported before it is needed.
"""

import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

F16 = 1  # ggml's number of the type
FLASH_ATTENTION_ON = 1
BATCH = 512
COUNTED = (
    *("hits", "misses", "evictions", "bytes_read", "disk_bytes", "read_seconds", "stall_seconds"),
    *("prefetch_useful", "prefetch_wasted"),
)


class Runner(Protocol):
    """What both engines can do.  `feed` continues the sequence and leaves the last token's logits in memory."""

    version: str
    features: str  # instruction sets, in the engine's own words
    plan: dict[str, Any]  # what the engine keeps in memory, if it says so

    def restart(self) -> None: ...

    def feed(self, ids: Sequence[int]) -> None: ...

    def counters(self) -> dict[str, float]: ...


class Penstock:
    def __init__(self, request: dict[str, Any]):
        import penstock

        self.version, self.features = penstock.__version__, ""
        self.engine = penstock.Engine(
            request["model"],
            threads=request["threads"],
            kv_dtype="f16",
            **{"prefill_chunk": BATCH, **request.get("options", {})},
        )
        self.plan = self.engine.plan.as_dict()
        self.restart()

    def restart(self) -> None:
        self.session = self.engine.session()

    def feed(self, ids: Sequence[int]) -> None:
        self.session.feed(ids, logits="last")

    def counters(self) -> dict[str, float]:
        return {name: value for name, value in self.engine.stats().items() if name in COUNTED}

    def together(self, prompts: Sequence[Sequence[int]]) -> Callable[[Sequence[int]], None]:
        """Sequences with a past, and what gives each of them its next token."""
        sessions = [self.engine.session() for _ in prompts]
        for session, prompt in zip(sessions, prompts, strict=True):
            session.feed(prompt, logits="none")

        def step(row: Sequence[int]) -> None:
            self.engine.feed([(session, [token]) for session, token in zip(sessions, row, strict=True)])

        return step

    def digest(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        self.restart()
        found = hashlib.sha256()
        for part in (prompt, *([token] for token in ids)):
            logits = self.session.feed(part)
            assert logits is not None
            found.update(logits.tobytes())
        return found.hexdigest()


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
        self.plan: dict[str, Any] = {}

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

    def counters(self) -> dict[str, float]:
        return {}


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


def disk_bytes() -> int:
    """Bytes that were read from disk for this process so far, page faults included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def answer(runner: Runner, request: dict[str, Any]) -> dict[str, Any]:
    """Prepares what the request asks for, and times it step by step."""
    what = request["do"]
    if what == "digest":
        assert isinstance(runner, Penstock)
        return {"sha256": runner.digest(request["prompt"], request["ids"])}
    runner.restart()
    if what == "prefill":
        return timed(runner, runner.feed, [request["ids"]])
    if what == "decode":
        runner.feed(request["prompt"])
        return timed(runner, runner.feed, [[token] for token in request["ids"]])
    assert isinstance(runner, Penstock)
    return timed(runner, runner.together(request["prompts"]), request["rows"])


def timed(
    runner: Runner, step: Callable[[Sequence[int]], None], parts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    counted, read = runner.counters(), disk_bytes()
    moments = [time.perf_counter()]
    for part in parts:
        step(part)
        moments.append(time.perf_counter())
    return {
        "seconds": moments[-1] - moments[0],
        "step_s": [after - before for before, after in pairwise(moments)],
        "disk_bytes": disk_bytes() - read,
        "counted": {name: value - counted.get(name, 0) for name, value in runner.counters().items()},
        "private_bytes": private_memory(),
    }


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
        "plan": runner.plan,
    }
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(runner, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

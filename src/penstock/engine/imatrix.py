"""Collects an importance matrix: a text runs through the model, and every weight notes the squares of its inputs.

    engine = Engine("flash.gguf", load=False, memory="16GiB")
    collector = InputCollector(engine)
    for done in collector.read(tokens, chunk_size=512): ...
    write_imatrix(collector.imatrix(["wiki.txt"]), Path("flash.imatrix.gguf"))

Experts are counted wherever they come from, those on disk too.  Gate and up of an expert have the same inputs, and so
have the router and the shared expert: one of them is observed, and the other written with its numbers.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.backend.device import HostBackend, InputSquares
from penstock.engine.engine import Engine
from penstock.errors import OptionError
from penstock.weights.imatrix import Entry, Imatrix
from penstock.weights.tensor import TensorInfo

SCORED: Final = 32  # last rows of a chunk that the output matrix sees
_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate_up|gate|up|down)_exps)(?:\.(\d+)\.weight|\.weight\[(\d+)\])")

# What reads the same inputs: observed → written for these too.
SAME: Final = {
    "ffn_gate_exps": ("ffn_up_exps",),
    "ffn_gate_shexp": ("ffn_up_shexp", "ffn_gate_inp"),
    "attn_q_a": (
        "attn_kv",
        "indexer.proj",
        *(f"{c}_{p}" for c in ("attn_compressor", "indexer_compressor") for p in ("kv", "gate")),
    ),
    "attn_q_b": ("indexer.attn_q_b",),
}
OBSERVED: Final = re.compile(
    r"blk\.\d+\.(attn_q_a|attn_q_b|attn_output_a|attn_output_b|ffn_(gate|down)_shexp|ffn_(gate_up|gate|down)_exps.*)"
    r"\.weight(\[\d+\])?|output\.weight"
)


class Chunk(NamedTuple):
    """How far it is: chunks read of how many, and how well the model foretold the tokens that were scored so far."""

    done: int
    of: int
    perplexity: float


class InputCollector:
    """The squares of the inputs of an engine's weights.  The engine must not have loaded them yet."""

    def __init__(self, engine: Engine):
        if not engine.parked:
            raise OptionError(
                "an importance matrix is collected from the moment weights are loaded: load=False"
            )
        if not isinstance(engine.backend, HostBackend):
            raise OptionError(
                f"device is {engine.backend.name!r}: the inputs of weights can be observed on cpu alone"
            )
        self.engine = engine
        self._squares: dict[str, dict[int, InputSquares]] = {}  # name → expert → [parts, columns + 1]
        self._chunks = self._chunk_size = 0
        engine.backend.observe_inputs(self._observe)

    @staticmethod
    def bytes_needed(engine: Engine) -> int:
        """Memory that the sums take once every expert was needed."""
        config = engine.config
        return 4 * sum(config.experts * (config.hidden + layer.expert_width + 2) for layer in config.layers)

    def read(self, tokens: Sequence[int], chunk_size: int) -> Iterator[Chunk]:
        """Runs the text in chunks, each from an empty context on; as many at a time as a step takes."""
        engine, bos = self.engine, self.engine.config.bos_id
        first = [] if bos is None else [bos]
        body = chunk_size - len(first)
        chunks = [[*first, *tokens[at : at + body]] for at in range(0, len(tokens) - body + 1, body)]
        if not chunks:
            raise OptionError(
                f"the text has {len(tokens):,} tokens, expected at least {body:,} for one chunk"
            )
        self._chunk_size = chunk_size
        engine.load()
        together = max(1, engine.plan.chunk // chunk_size)
        lost, scored = 0.0, 0
        for at in range(0, len(chunks), together):
            group = chunks[at : at + together]
            for ids, logits in zip(group, self._run(group), strict=True):
                following = np.array(ids[-SCORED:])[1:]
                rows = logits[-SCORED:-1].astype(np.float64)
                rows -= rows.max(axis=1, keepdims=True)
                logs = rows[np.arange(len(following)), following] - np.log(np.exp(rows).sum(axis=1))
                lost, scored = lost - float(logs.sum()), scored + len(following)
            self._chunks += len(group)
            yield Chunk(self._chunks, len(chunks), math.exp(lost / max(1, scored)))

    def _run(self, group: list[list[int]]) -> list[InputSquares]:
        """Logits of the last rows of every chunk."""
        sessions, step = [self.engine.session() for _ in group], self.engine.plan.chunk // len(group)
        for at in range(0, len(group[0]), max(1, step)):
            work = []
            for session, ids in zip(sessions, group, strict=True):
                part = ids[at : at + max(1, step)]
                last = at + len(part) == len(ids)
                work.append((session, part, min(SCORED, len(part)) if last else 0))
            found = self.engine.stepper.advance(work)
        return [logits for logits in found if logits is not None]

    def imatrix(self, datasets: Sequence[str]) -> Imatrix:
        """What has been collected so far."""
        entries: dict[str, Entry] = {}
        for name, parts in self._squares.items():
            columns = next(iter(parts.values())).shape[1] - 1
            count = self.engine.config.experts if "_exps" in name else 1
            if "_exps" not in name:
                (all_parts,) = parts.values()
                # One count for all groups, as llama.cpp has it.
                entry = Entry(all_parts[:, :columns].copy(), all_parts[:1, columns].copy())
            else:
                entry = Entry(np.zeros((count, columns), np.float32), np.zeros(count, np.float32))
                for number, squares in parts.items():
                    entry.sums[number], entry.counts[number] = squares[0, :columns], squares[0, columns]
            block, _, leaf = name.removesuffix(".weight").rpartition(".")
            if leaf == "ffn_gate_up_exps":
                leaf = "ffn_gate_exps"
            for same in (leaf, *SAME.get(leaf, ())):
                full = f"{block}.{same}.weight" if block else f"{same}.weight"
                if same in (leaf, "ffn_up_exps", "ffn_gate_inp") or full in self.engine.checkpoint.index:
                    entries[full] = entry
        return Imatrix(entries, tuple(datasets), self._chunks, self._chunk_size)

    def _observe(self, info: TensorInfo) -> InputSquares | None:
        if not OBSERVED.fullmatch(info.name):
            return None
        name, number = info.name, 0
        if match := _EXPERT.fullmatch(name):
            name, number = f"{match[1]}.weight", int(match[2] or match[3])
        parts = self._squares.setdefault(name, {})
        if number not in parts:
            groups = self.engine.config.o_groups if name.endswith("attn_output_a.weight") else 1
            parts[number] = np.zeros((groups, info.shape[-1] + 1), np.float32)
        return parts[number]

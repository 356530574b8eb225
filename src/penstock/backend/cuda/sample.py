"""Choosing tokens where logits lie: one launch for all rows of a step (kernels/sample.cu), one small copy back."""

import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.base import Choice, Chosen, Logits, Sampling
from penstock.backend.cuda.device import translated
from penstock.backend.cuda.inputs import FLOAT, INT, LONG, VOID, address
from penstock.backend.cuda.launch import module

MOST: Final = 32  # rows of a launch
DOUBLE = ctypes.c_double
EDIT = np.dtype([("id", "i4"), ("repeated", "i4"), ("add", "f4"), ("pad", "f4"), ("subtract", "f8")])
CHOSEN = np.dtype([("token", "i4"), ("logit", "f4"), ("highest", "f4"), ("best", "f4"), ("total", "f8")])


class DeviceLogits:
    """Logits [rows, vocab], or one row of them, on the card until somebody looks (`np.asarray`).  They are good until
    the next step, a `copy` for longer."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, where: int | slice) -> "DeviceLogits":
        return DeviceLogits(self.tensor[where])

    def __iter__(self) -> Iterator["DeviceLogits"]:
        return (self[row] for row in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float32]:
        del copy  # it always is one
        with translated("reading logits"):
            found: NDArray[np.float32] = self.tensor.cpu().numpy()
        return found if dtype is None else found.astype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def copy(self) -> "DeviceLogits":
        return DeviceLogits(self.tensor.clone())

    def for_the_engine(self) -> Logits:
        """As what it stands for."""
        return cast(Logits, self)


class _Choice(ctypes.Structure):
    _fields_ = (
        ("logits", VOID), ("edits", VOID), ("mask", VOID), ("top_p", DOUBLE), ("chance", DOUBLE),
        ("edit_count", INT), ("top_k", INT), ("factor", FLOAT), ("min_p", FLOAT), ("repetition", FLOAT),
        ("pad", FLOAT),
    )  # fmt: skip


class _Sample(ctypes.Structure):
    _fields_ = (("choices", VOID), ("scratch", VOID), ("chosen", VOID), ("vocabulary", LONG))


class SampleRows:
    """choices (struct Choice) of so many rows → chosen (`CHOSEN`); scratch float32 [rows, vocabulary]"""

    def __init__(self, choices: torch.Tensor, scratch: torch.Tensor, chosen: torch.Tensor, rows: int):
        self._argument = _Sample(address(choices), address(scratch), address(chosen), scratch.shape[1])
        self._keep, self._rows = (choices, scratch, chosen), rows
        self._kernel = module("sample.cu").kernel("sample")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows, 1024, (self._argument,), overlap)


class Started:
    """A choice that is being made."""

    def __init__(self, row: torch.Tensor, choice: Choice):
        self.row, self.choice = row, choice
        self.chosen: Chosen | None = None


class CudaSampling(Sampling):
    """Rows of the card's logits; those of the host go to `host`."""

    def __init__(self, host: Sampling):
        self._host = host
        self._waiting: list[Started] = []
        self._lock = threading.Lock()
        self._scratch: torch.Tensor | None = None
        self._results = torch.zeros(MOST * CHOSEN.itemsize, dtype=torch.uint8, device="cuda")
        self._read = torch.zeros(MOST * CHOSEN.itemsize, dtype=torch.uint8).pin_memory()

    def start(self, logits: Logits, choice: Choice) -> Callable[[], Chosen] | None:
        row: object = logits
        if not isinstance(row, DeviceLogits):
            return None
        started = Started(row.tensor, choice)
        with self._lock:
            self._waiting.append(started)
        return lambda: self._result(started)

    def _result(self, started: Started) -> Chosen:
        with self._lock, translated("choosing a token"):
            while started.chosen is None:
                some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                self._launch(some)
        return started.chosen

    def _launch(self, started: list[Started]) -> None:
        vocabulary = started[0].row.numel()
        if self._scratch is None or self._scratch.shape[1] != vocabulary:
            self._scratch = torch.empty(MOST, vocabulary, device="cuda")
        choices, kept = on_card([(each.row, each.choice) for each in started])
        SampleRows(choices, self._scratch, self._results, len(started)).launch()
        self._read.copy_(self._results, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        found = self._read.numpy().view(CHOSEN)
        del kept  # edits and masks, which the kernel has read
        for each, row in zip(started, found[: len(started)], strict=True):
            token, highest = int(row["token"]), float(row["highest"])
            total = float(row["total"])
            norm = highest + math.log(total) if token >= 0 and total > 0 else math.nan
            each.chosen = Chosen(token, float(row["logit"]) - norm, highest, float(row["best"]))

    # ── one question at a time, of the host's logits ──────────────────────────────────────────────────────

    def top(self, logits: Logits) -> tuple[int, float]:
        return self._host.top(np.asarray(logits))

    def log_sum(self, logits: Logits, highest: float) -> float:
        return self._host.log_sum(np.asarray(logits), highest)

    def draw(
        self, logits: Logits, highest: float, temperature: float, top_k: int, top_p: float, min_p: float,
        chance: float,
    ) -> int:  # fmt: skip
        return self._host.draw(np.asarray(logits), highest, temperature, top_k, top_p, min_p, chance)

    def best(self, logits: Logits, count: int) -> NDArray[np.int64]:
        return self._host.best(np.asarray(logits), count)


class Packed:
    """Edits and masks of several choices one behind the other, and where each begins."""

    def __init__(self, data: NDArray[np.uint8], edits: list[int], masks: list[int]):
        self.data, self.edits, self.masks = data, edits, masks

    def choice(self, number: int, choice: Choice, logits: int, start: int) -> _Choice:
        count = 0 if choice.edits is None else len(choice.edits.ids)
        return _Choice(
            logits, start + self.edits[number], 0 if choice.mask is None else start + self.masks[number],
            choice.top_p, choice.chance, count, choice.top_k,
            min(1.0 / choice.temperature, 1e30) if choice.temperature > 0 else 0.0,
            choice.min_p, choice.repetition_penalty, 0.0,
        )  # fmt: skip


def on_card(rows: list[tuple[torch.Tensor, Choice]]) -> tuple[torch.Tensor, torch.Tensor]:
    """struct Choice of every row, and what they point to."""
    packed = pack([choice for _, choice in rows])
    data, array = torch.from_numpy(packed.data).to("cuda"), (_Choice * len(rows))()
    for number, (row, choice) in enumerate(rows):
        array[number] = packed.choice(number, choice, row.data_ptr(), data.data_ptr())
    return torch.frombuffer(bytearray(bytes(array)), dtype=torch.uint8).to("cuda"), data


def pack(choices: list[Choice]) -> Packed:
    parts: list[NDArray[np.uint8]] = []
    at, starts = 0, ([], [])  # type: int, tuple[list[int], list[int]]
    for choice in choices:
        edits = np.zeros(0 if choice.edits is None else len(choice.edits.ids), EDIT)
        if choice.edits is not None:
            edits["id"], edits["repeated"] = choice.edits.ids, choice.edits.repeated
            edits["subtract"], edits["add"] = choice.edits.subtract, choice.edits.add
        mask = np.zeros(0, np.uint32) if choice.mask is None else choice.mask
        for list_, array in zip(starts, (edits, mask), strict=True):
            raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
            list_.append(at)
            parts += [raw, np.zeros(-len(raw) % 16, np.uint8)]
            at += len(raw) + -len(raw) % 16
    data = np.concatenate([*parts, np.zeros(16, np.uint8)])
    return Packed(data, *starts)

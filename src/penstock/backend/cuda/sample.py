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
        self._given, self._here = _buffers(1 << 16)
        self._results, self._read = _buffers(MOST * CHOSEN.itemsize)
        self._scratch: dict[int, torch.Tensor] = {}  # by vocabulary
        self._launches: dict[tuple[int, int], SampleRows] = {}  # by vocabulary and rows

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
        """All of it follows the logits on the card: nobody waits before the tokens are back."""
        choices = [each.choice for each in started]
        data, edits, masks = pack(choices)
        size = ctypes.sizeof(_Choice) * len(started)
        if size + len(data) > len(self._given):
            self._given, self._here = _buffers(2 * (size + len(data)))
            self._launches.clear()
        there = self._given.data_ptr() + size
        array = (_Choice * len(started))(
            *(
                _argument(each, each_row.row.data_ptr(), there + edit, there + mask)
                for each, each_row, edit, mask in zip(choices, started, edits, masks, strict=True)
            )
        )
        host = self._here.numpy()
        host[:size] = np.frombuffer(bytes(array), np.uint8)
        host[size : size + len(data)] = data
        self._given[: size + len(data)].copy_(self._here[: size + len(data)], non_blocking=True)
        self._kernel(started[0].row.numel(), len(started)).launch()
        self._read.copy_(self._results, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        found = self._read.numpy()[: MOST * CHOSEN.itemsize].view(CHOSEN)
        for one, row in zip(started, found[: len(started)], strict=True):
            token, highest, total = int(row["token"]), float(row["highest"]), float(row["total"])
            norm = highest + math.log(total) if token >= 0 and total > 0 else math.nan
            one.chosen = Chosen(token, float(row["logit"]) - norm, highest, float(row["best"]))

    def _kernel(self, vocabulary: int, rows: int) -> SampleRows:
        key = (vocabulary, rows)
        if key not in self._launches:
            if vocabulary not in self._scratch:
                self._scratch[vocabulary] = torch.empty(MOST, vocabulary, device="cuda")
            scratch = self._scratch[vocabulary]
            self._launches[key] = SampleRows(self._given, scratch, self._results, rows)
        return self._launches[key]

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


def _buffers(nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """On the card, and pinned on the host."""
    return (
        torch.zeros(nbytes, dtype=torch.uint8, device="cuda"),
        torch.zeros(nbytes, dtype=torch.uint8).pin_memory(),
    )


def _argument(choice: Choice, logits: int, edits: int, mask: int) -> _Choice:
    return _Choice(
        logits, edits, 0 if choice.mask is None else mask, choice.top_p, choice.chance,
        0 if choice.edits is None else len(choice.edits.ids), choice.top_k,
        min(1.0 / choice.temperature, 1e30) if choice.temperature > 0 else 0.0,
        choice.min_p, choice.repetition_penalty, 0.0,
    )  # fmt: skip


def on_card(rows: list[tuple[torch.Tensor, Choice]]) -> torch.Tensor:
    """struct Choice of every row, for choices without edits and masks."""
    array = (_Choice * len(rows))(*(_argument(choice, row.data_ptr(), 0, 0) for row, choice in rows))
    return torch.from_numpy(np.frombuffer(bytes(array), np.uint8).copy()).cuda()


def pack(choices: list[Choice]) -> tuple[NDArray[np.uint8], list[int], list[int]]:
    """Edits and masks of all choices one behind the other, and where those of each begin."""
    parts: list[NDArray[np.uint8]] = []
    at = 0
    starts: tuple[list[int], list[int]] = ([], [])
    for choice in choices:
        edits = np.zeros(0 if choice.edits is None else len(choice.edits.ids), EDIT)
        if choice.edits is not None:
            edits["id"], edits["repeated"] = choice.edits.ids, choice.edits.repeated
            edits["subtract"], edits["add"] = choice.edits.subtract, choice.edits.add
        mask = np.zeros(0, np.uint32) if choice.mask is None else choice.mask
        for begins, array in zip(starts, (edits, mask), strict=True):
            begins.append(at)
            if array.size:
                raw = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
                parts += [raw, np.zeros(-len(raw) % 16, np.uint8)]
                at += len(raw) + -len(raw) % 16
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8), *starts

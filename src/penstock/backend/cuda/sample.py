"""Choosing tokens where logits lie: one launch for all rows of a step (kernels/sample.cu), which writes
the tokens where the next step can read them, and all that the host wants to know to the host."""

import ctypes
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.base import Choice, Choosing, Chosen, Logits, Sampling
from penstock.backend.cuda.device import card, translated
from penstock.backend.cuda.inputs import FLOAT, INT, LONG, VOID, address
from penstock.backend.cuda.launch import kernel
from penstock.backend.device_sampling import DeviceSampling
from penstock.errors import PenstockError

MOST: Final = 32  # rows of a launch
FIXED_BYTES: Final = 8488  # of shared memory, besides a block's part of the row: struct Shared
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
    _fields_ = (
        ("choices", VOID),
        ("scratch", VOID),
        ("chosen", VOID),
        ("tokens", VOID),
        ("vocabulary", LONG),
    )


class SampleRows:
    """choices (struct Choice) of so many rows → chosen (`CHOSEN`), maybe on the host, and tokens int32 [rows];
    scratch float32 [rows, vocabulary], where `needs_scratch`"""

    def __init__(
        self,
        choices: torch.Tensor,
        chosen: torch.Tensor,
        tokens: torch.Tensor,
        rows: int,
        vocabulary: int,
        scratch: torch.Tensor | None = None,
    ):
        self._argument = _Sample(
            address(choices), address(scratch), address(chosen), address(tokens), vocabulary
        )
        self._keep, self._rows = (choices, scratch, chosen, tokens), rows
        self._kernel = kernel(
            "sample.cu", "sample", FIXED_BYTES if scratch is not None else _shared(vocabulary)
        )

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows * _blocks(), 1024, (self._argument,), overlap)


def _blocks() -> int:
    """Of a row: a cluster, where there are clusters."""
    return 8 if card().bulk else 1


def _shared(vocabulary: int) -> int:
    """Shared memory of each of a row's blocks, which keep their part of it there."""
    return FIXED_BYTES + 4 * -(-vocabulary // _blocks())


def needs_scratch(vocabulary: int) -> bool:
    """Whether a row does not fit in the shared memory of its blocks."""
    return _shared(vocabulary) > card().shared_limit


class Started(Choosing):
    """A choice that is being made."""

    def __init__(self, owner: "CudaSampling", row: torch.Tensor, choice: Choice):
        self._owner, self.row, self.choice = owner, row, choice
        self.token: torch.Tensor | None = None  # int32 [1] on the card, from when it has been launched
        self.chosen: Chosen | None = None
        self.failure: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.chosen is not None or self.failure is not None

    def result(self) -> Chosen:
        return self._owner.result(self)


class CudaSampling(DeviceSampling):
    """Rows of the card's logits; those of the host go to `host`."""

    def __init__(self, host: Sampling):
        super().__init__(host)
        self._waiting: list[Started] = []
        self._launched: list[Started] = []  # whose results are on their way
        self._lock = threading.Lock()
        self._given, self._here = _buffers(1 << 16)
        self._read = torch.zeros(MOST * CHOSEN.itemsize, dtype=torch.uint8).pin_memory()
        self._done = torch.cuda.Event()
        self._scratch: dict[int, torch.Tensor] = {}  # by vocabulary

    def start(self, logits: Logits, choice: Choice) -> Choosing | None:
        row: object = logits
        if not isinstance(row, DeviceLogits):  # of the host, or of another machine
            return super().start(logits, choice)
        started = Started(self, row.tensor, choice)
        with self._lock:
            self._waiting.append(started)
        return started

    def result(self, started: Started) -> Chosen:
        with self._lock:
            while not started.over:
                if started not in self._launched:
                    self._launch()
                else:
                    self._collect()
        if started.failure is not None:
            raise started.failure
        assert started.chosen is not None
        return started.chosen

    def tokens(self, choices: Sequence[Choosing]) -> torch.Tensor | None:
        with self._lock:
            found = []
            for choice in choices:
                if not isinstance(choice, Started):
                    return None
                while choice.token is None and not choice.over:
                    self._launch()
                if choice.token is None:
                    return None
                found.append(choice.token)
        return found[0] if len(found) == 1 else torch.cat(found)

    def _launch(self) -> None:
        """As many as wait, and fit.  All of it follows the logits on the card: nobody waits here."""
        self._collect()  # their results lie where the next ones will
        started, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        with self._failing(started):
            choices = [each.choice for each in started]
            data, edits, masks = pack(choices)
            size = ctypes.sizeof(_Choice) * len(started)
            if size + len(data) > len(self._given):
                self._given, self._here = _buffers(2 * (size + len(data)))
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
            tokens = torch.empty(len(started), dtype=torch.int32, device="cuda")
            vocabulary = started[0].row.numel()
            scratch = self._scratch_of(vocabulary) if needs_scratch(vocabulary) else None
            # Results go straight to the host.
            SampleRows(self._given, self._read, tokens, len(started), vocabulary, scratch).launch()
            self._done.record()
            self._launched = started
            for each, token in zip(started, tokens.split(1), strict=True):
                each.token = token

    def _collect(self) -> None:
        """Waits for what has been launched."""
        started, self._launched = self._launched, []
        if not started:
            return
        with self._failing(started):
            self._done.synchronize()
            found = self._read.numpy().view(CHOSEN)
            for one, row in zip(started, found[: len(started)], strict=True):
                token, highest, total = int(row["token"]), float(row["highest"]), float(row["total"])
                norm = highest + math.log(total) if token >= 0 and total > 0 else math.nan
                one.chosen = Chosen(token, float(row["logit"]) - norm, highest, float(row["best"]))

    @contextmanager
    def _failing(self, started: list[Started]) -> Iterator[None]:
        """What goes wrong is told to each of these, when they ask."""
        try:
            with translated("choosing a token"):
                yield
        except PenstockError as error:
            for each in started:
                each.failure = error

    def _scratch_of(self, vocabulary: int) -> torch.Tensor:
        if vocabulary not in self._scratch:
            self._scratch[vocabulary] = torch.empty(MOST, vocabulary, device="cuda")
        return self._scratch[vocabulary]


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

"""What machines say to each other: words and numbers as JSON, and arrays behind them.

    length of the header (4 bytes, little-endian) | header, JSON | arrays, each from a multiple of 64 bytes on

The same form goes over the control connection and between stages.  Whatever bytes come, `decode` gives a message or
raises ClusterError.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ClusterError

ALIGNED: Final = 64  # bytes: what a vector instruction may want
LENGTH: Final = 4
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "i64": np.dtype(np.int64),
    "u32": np.dtype(np.uint32),
    "u16": np.dtype(np.uint16),  # also the bits of bfloat16
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass
class Message:
    """kind: what it is about; fields: what JSON has; arrays: by name."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def encode(self) -> NDArray[np.uint8]:
        """As bytes.

        >>> Message.decode(Message("step", {"number": 3}).encode()).fields
        {'number': 3}
        """
        described = [[name, NAMES[array.dtype], list(array.shape)] for name, array in self.arrays.items()]
        header = json.dumps([self.kind, self.fields, described], separators=(",", ":")).encode()
        places, at = [], _up(LENGTH + len(header))
        for array in self.arrays.values():
            places.append(at)
            at = _up(at + array.nbytes)
        found = np.zeros(at, np.uint8)
        found[:LENGTH] = np.frombuffer(len(header).to_bytes(LENGTH, "little"), np.uint8)
        found[LENGTH : LENGTH + len(header)] = np.frombuffer(header, np.uint8)
        for place, array in zip(places, self.arrays.values(), strict=True):
            found[place : place + array.nbytes].view(array.dtype)[...] = array.reshape(-1)
        return found

    @staticmethod
    def decode(data: NDArray[np.uint8]) -> "Message":
        """Arrays are views of the bytes."""
        length = int.from_bytes(data[:LENGTH].tobytes(), "little")
        if len(data) < LENGTH or length > len(data) - LENGTH:
            raise ClusterError("a message is shorter than it says")
        try:
            kind, fields, described = json.loads(data[LENGTH : LENGTH + length].tobytes())
            if not (isinstance(kind, str) and isinstance(fields, dict) and isinstance(described, list)):
                raise ValueError
            arrays, at = {}, _up(LENGTH + length)
            for name, dtype, shape in described:
                count = _count(shape)
                nbytes = count * DTYPES[dtype].itemsize
                if not isinstance(name, str) or at + nbytes > len(data):
                    raise ValueError
                arrays[name] = data[at : at + nbytes].view(DTYPES[dtype]).reshape(shape)
                at = _up(at + nbytes)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ClusterError("a message cannot be read") from None
        return Message(kind, fields, arrays)


def _up(number: int) -> int:
    return -(-number // ALIGNED) * ALIGNED


def _count(shape: Any) -> int:
    if not isinstance(shape, list) or len(shape) > 4 or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError
    return math.prod(shape)


def take(fields: Mapping[str, Any], **wanted: type) -> list[Any]:
    """Fields of a message by name, in order, each of the type that is expected."""
    found = []
    for name, kind in wanted.items():
        value = fields.get(name)
        if type(value) is not kind:
            raise ClusterError(f"a message has {name} {value!r:.40}, expected {kind.__name__}")
        found.append(value)
    return found

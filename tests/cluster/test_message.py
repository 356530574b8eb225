"""Messages: what goes in comes out, and whatever bytes come, the answer is a message or one error."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.message import DTYPES, Message, take
from penstock.errors import ClusterError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 5), (1, 4, 8)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).astype(DTYPES[dtype]).reshape(shape)
    back = Message.decode(Message("step", {"a": [1, "b"]}, {"x": array, "y": array}).encode())
    assert back.kind == "step"
    assert back.fields == {"a": [1, "b"]}
    for found in back.arrays.values():
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
        assert found.size == 0 or found.ctypes.data % found.itemsize == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    with suppress(ClusterError):
        Message.decode(np.frombuffer(data, np.uint8))


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_message_is_a_message_or_an_error(at: int, value: int) -> None:
    data = Message("step", {"n": 1}, {"x": np.zeros((4, 8), np.float32)}).encode().copy()
    data[at % len(data)] = value
    try:
        found = Message.decode(data)
    except ClusterError:
        return
    assert sum(array.nbytes for array in found.arrays.values()) <= len(data)


def test_fields_have_their_types() -> None:
    assert take({"a": 1, "b": "x"}, b=str, a=int) == ["x", 1]
    with pytest.raises(ClusterError, match="a True, expected int"):
        take({"a": True}, a=int)
    with pytest.raises(ClusterError, match="c None, expected str"):
        take({}, c=str)

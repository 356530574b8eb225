"""JSON that is read piece by piece means what it means as a whole, and nobody waits for it for long."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.http import json_pieces
from penstock.server.http.json_pieces import check_structure, parse, pieces

TEXTS = st.text(st.sampled_from('aé😀\\"\n汉\ud83d\ude00\0,[{ '), max_size=200)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


def read(body: bytes, size: int, many: int) -> Any:
    """With pieces of so many bytes; and the decoder for bodies of more than `many` values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "pieces", lambda body: pieces(body, size))
        patch.setattr(json_pieces, "LARGE", 0)
        patch.setattr(json_pieces, "MANY", many)
        return parse(body, check_structure(body, 1 << 20))


def as_a_whole(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except ValueError:
        return math.inf


@given(VALUES, st.booleans(), st.integers(13, 64), st.sampled_from([0, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_pieces_mean_the_whole(value: Any, ascii: bool, size: int, many: int) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode(errors="replace")
    assert b"".join(pieces(body, size)) == body
    assert read(body, size, many) == json.loads(body)


@given(VALUES, st.integers(13, 64), st.data())
@settings(max_examples=300, deadline=None)
def test_what_means_nothing_is_refused(value: Any, size: int, data: st.DataObject) -> None:
    body = bytearray(json.dumps(value).encode())
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(body), size, 1 << 20)
    except ValueError:
        found = math.inf
    assert found == as_a_whole(bytes(body))


@pytest.mark.parametrize("text", ["word " * 800_000, "wo\n" * 1_000_000, "汉字" * 300_000, '"\\' * 900_000])
def test_no_call_gets_all_of_a_long_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, longest, loads = json.dumps({"messages": [{"content": text}]}).encode(), 0, json.loads

    def counting(part: Any) -> Any:
        nonlocal longest
        longest = max(longest, len(part))
        return loads(part)

    class Decoder(json.JSONDecoder):
        def decode(self, s: str, *args: Any) -> Any:
            nonlocal longest
            longest = max(longest, len(s))
            return super().decode(s, *args)

    monkeypatch.setattr(json, "loads", counting)
    monkeypatch.setattr(json, "JSONDecoder", Decoder)
    assert parse(body, 4) == {"messages": [{"content": text}]}
    assert 0 < longest < 3 * json_pieces.PIECE


def test_many_values_are_made_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other threads get their turn between any two of them."""
    body = json.dumps({"prompt": list(range(60_000))}).encode()
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("in C"))
    monkeypatch.setattr(json, "JSONDecoder", lambda: pytest.fail("in C"))
    assert parse(body, check_structure(body, 1 << 20)) == {"prompt": list(range(60_000))}

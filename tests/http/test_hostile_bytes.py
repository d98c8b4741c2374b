"""Bytes that nobody should have sent: an error in bounded time and memory, never a crash, a cycle or a class."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_http.errors import WireFormatError
from twinkle_http.messages import CallRequest, CallUpdate, UpdateAnswer, UpdateRequest, packed, unpacked
from twinkle_http.wire import decode, encode, framed
from twinkle_remote.rows import TypeNames

TYPES = TypeNames()


def tagged(tag: str, *parts: Any) -> Any:
    return {"": [tag, *parts]}


def message(root: Any, buffers: list[bytes]) -> bytes:
    return framed(root, [memoryview(buffer) for buffer in buffers]).to_bytes()


def read(data: bytes | bytearray) -> Any:
    return decode(data, TYPES)


GOOD = encode({"a": np.arange(300), "b": (1, {2: b"x" * 2000}), "c": [2**70, {1, 2}]}, TYPES).to_bytes()


UPDATE = CallUpdate(7, value=b"value", error=b"error", outcome={"rows": 3, "is_list": True, "columns": ["a", "b"]})
UPDATES = packed(UpdateAnswer([(1, UPDATE), (2, CallUpdate(2))], draining=True))


@settings(max_examples=240, deadline=None)
@given(st.sampled_from([GOOD, UPDATES]), st.data(), st.integers(0, 255))
def test_a_changed_or_cut_message_is_a_value_or_an_error(good: bytes, draw: st.DataObject, byte: int) -> None:
    data = bytearray(good)
    data[draw.draw(st.integers(0, len(good) - 1))] = byte
    part = bytes(data[: draw.draw(st.integers(0, len(good)))])
    with contextlib.suppress(WireFormatError):
        read(part) if good is GOOD else unpacked(part, UpdateAnswer)


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireFormatError):
        read(data)


plain = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
TAGS = "tuple set frozenset dict bytes bytearray int range slice made error array scalar tensor x"
parts = st.recursive(
    plain | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(lambda tag, rest: tagged(tag, *rest), st.sampled_from(TAGS.split()), st.lists(inner, max_size=4))
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(parts, st.lists(st.binary(max_size=80), max_size=3))
def test_any_tree_is_a_value_or_an_error(root: Any, buffers: list[bytes]) -> None:
    with contextlib.suppress(WireFormatError):
        read(message(root, buffers))


@pytest.mark.parametrize(
    ("root", "buffers", "text"),
    [
        ([tagged("bytes"), tagged("bytes")], [b"1"], "fewer buffers than its values need"),
        ([tagged("bytes")], [b"1", b"2"], "a buffer that no value uses"),
        (tagged("array", "|O", [1]), [b"12345678"], "does not hold what it should"),
        (tagged("array", "O,i8", [1]), [b"1234567812345678"], "does not hold what it should"),
        (tagged("array", ["O"], [1]), [b"12345678"], "is no dtype of an array"),
        (tagged("array", "<i8", [1 << 61, 8]), [b""], "does not hold what it should"),
        (tagged("array", "<i8", [[1]]), [b""], "does not hold what it should"),
        (tagged("array", "<i8", [2]), [b"12345678"], "does not hold what it should"),
        (tagged("tensor", "torch.nn.Module", [1], False), [b"1"], "is no dtype of torch"),
        (tagged("made", "builtins.object", {}), [], "is not known here"),
        (tagged("made", "os.system", {"command": "true"}), [], "is not known here"),
        (tagged("made", "os.system", "true"), [], "is not known here"),
        (tagged("dict", [[[1], 2]]), [], "does not hold what it should"),
        (tagged("range", [0, 1, 0]), [], "does not hold what it should"),
        (tagged("int", "__import__"), [], "does not hold what it should"),
        (tagged("ref", "1"), [], "is not known"),
        ({1: 2}, [], "a key that is no text"),
        (msgspec.msgpack.Ext(1, b"x"), [], "stands for no value"),
        ({"": "tuple"}, [], "a tag and its parts"),
    ],
)
def test_what_a_message_may_not_hold(root: Any, buffers: list[bytes], text: str) -> None:
    with pytest.raises(WireFormatError, match=text):
        read(message(root, buffers))


def test_nesting_is_bounded_by_lists_and_by_tags() -> None:
    deep: Any = []
    tuples: Any = tagged("tuple", [])
    for _ in range(120):
        deep, tuples = [deep], tagged("tuple", [tuples])
    for root in (deep, tuples):
        with pytest.raises(WireFormatError, match="at most 100 values deep"):
            read(message(root, []))
    bomb = b"\x92" + b"\x91" * 60_000 + b"\x90\x90"  # MessagePack itself, nested 60,000 times
    with pytest.raises(WireFormatError, match="cannot be read"):
        read(struct.pack("<4sQ", b"TWK3", len(bomb)) + bomb)


def test_limits_hold_before_memory_is_taken() -> None:
    for head, text in (
        (struct.pack("<4sQ", b"TWK3", 1 << 40), "the head of a message has at most"),
        (struct.pack("<4sQ", b"TWK1", 10), "is no message of this version"),
        (b"GET / HTTP/1", "does not begin with"),
    ):
        with pytest.raises(WireFormatError, match=text):
            read(head)
    claimed = msgspec.msgpack.encode([tagged("bytes"), [1 << 30]])
    tracemalloc.start()
    with pytest.raises(WireFormatError, match="is cut off after"):
        read(struct.pack("<4sQ", b"TWK3", len(claimed)) + claimed)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(WireFormatError, match="bytes behind the end"):
        read(GOOD + b"x")


@pytest.mark.parametrize("root", [[1], 5, {"floor": "x"}, {"drop": [1]}, {"drop": 5}, b"x"])
def test_what_is_no_request_is_refused(root: Any) -> None:
    with pytest.raises(WireFormatError, match="is no CallRequest"):
        unpacked(framed(root).to_bytes(), CallRequest)


def test_updates_arrive_as_they_were_sent() -> None:
    assert unpacked(UPDATES, UpdateAnswer).updates == [(1, UPDATE), (2, CallUpdate(2))]
    assert unpacked(packed(UPDATE), CallUpdate) == UPDATE
    assert unpacked(packed(UpdateRequest(5, 0.5, 7, ["r1"])), UpdateRequest) == UpdateRequest(5, 0.5, 7, ["r1"])

"""Bytes that nobody should have sent: an error in bounded time and memory, never a crash, a cycle or a class."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinkle_http.messages import Limits, MessageReader, WireFormatError, framed
from twinkle_http.wire import decode, encode
from twinkle_remote.rows import TypeNames

TYPES = TypeNames()
SMALL = Limits(body=1 << 20, head=1 << 16, buffers=16, depth=20)


def tagged(tag: str, *parts: Any) -> Any:
    return {"": [tag, *parts]}


def message(root: Any, buffers: list[bytes]) -> bytes:
    return framed(root, [memoryview(buffer) for buffer in buffers]).to_bytes()


def read(data: bytes, limits: Limits = SMALL) -> Any:
    return decode([data], TYPES, limits=limits)


GOOD = encode({"a": np.arange(300), "b": (1, {2: b"x" * 2000}), "c": [2**70, {1, 2}]}, TYPES).to_bytes()


@settings(max_examples=120, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
@example(0, 0, len(GOOD))
def test_a_changed_or_cut_message_is_a_value_or_an_error(place: int, byte: int, end: int) -> None:
    data = bytearray(GOOD)
    data[place] = byte
    try:
        read(bytes(data[:end]))
    except WireFormatError:
        return


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireFormatError):
        read(data)


plain = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=8)
TAGS = "tuple set frozenset dict bytes bytearray int range slice enum flag named data made array scalar tensor dtype x"
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
    try:
        read(message(root, buffers))
    except WireFormatError:
        return


@pytest.mark.parametrize(
    ("root", "buffers", "text"),
    [
        ([tagged("bytes"), tagged("bytes")], [b"1"], "fewer buffers than its values need"),
        ([tagged("bytes")], [b"1", b"2"], "a buffer that no value uses"),
        (tagged("array", "|O", [1]), [b"12345678"], "is no dtype of an array"),
        (tagged("array", "<i8", [1 << 61, 8]), [b""], "does not fill"),
        (tagged("array", "<i8", [-1]), [b""], "is no shape"),
        (tagged("array", "<i8", [2]), [b"12345678"], "does not fill a buffer of 8 bytes"),
        (tagged("tensor", "torch.nn.Module", [1], False), [b"1"], "is no dtype of torch"),
        (tagged("data", "builtins.object", {}), [], "is not known here"),
        (tagged("data", "os.system", {"command": "true"}), [], "is not known here"),
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
    for _ in range(50):
        deep, tuples = [deep], tagged("tuple", [tuples])
    for root in (deep, tuples):
        with pytest.raises(WireFormatError, match="at most 20 values deep"):
            read(message(root, []))
    bomb = b"\x92" + b"\x91" * 60_000 + b"\x90\x90"  # MessagePack itself, nested 60,000 times
    with pytest.raises(WireFormatError, match="cannot be read"):
        read(struct.pack("<4sQ", b"TWK2", len(bomb)) + bomb)


def test_limits_hold_before_memory_is_taken() -> None:
    for head, text in (
        (struct.pack("<4sQ", b"TWK2", 1 << 40), "the head of a message has at most"),
        (struct.pack("<4sQ", b"TWK1", 10), "is no message of this version"),
        (b"GET / HTTP/1", "does not begin with"),
    ):
        with pytest.raises(WireFormatError, match=text):
            read(head)
    claimed = msgspec.msgpack.encode([None, [1 << 30]])
    data = struct.pack("<4sQ", b"TWK2", len(claimed)) + claimed
    with pytest.raises(WireFormatError, match="buffers of a message have at most"):
        read(data)
    tracemalloc.start()
    reader: MessageReader[Any] = MessageReader(Limits())
    reader.feed(data)  # a gigabyte is claimed, and none of it has arrived
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(WireFormatError, match="is cut off after"):
        reader.finish()
    with pytest.raises(WireFormatError, match="at most 1048576 bytes"):
        read(GOOD + bytes(1 << 20))
    with pytest.raises(WireFormatError, match="bytes behind the end"):
        read(GOOD + b"x")


def test_memory_of_a_big_message_is_its_own_size() -> None:
    array = np.zeros(8 << 20, np.uint8)
    sent = encode(array, TYPES)
    tracemalloc.start()
    reader: MessageReader[Any] = MessageReader(Limits())
    for chunk in sent.chunks(1 << 16):
        reader.feed(chunk)
    reader.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20  # beside the buffer's own memory, which is mapped


def read_in_parts(data: bytes, counts: list[int]) -> object:
    """Tree and buffers, or the error: fed so many bytes at a time."""
    reader: MessageReader[Any] = MessageReader(SMALL)
    at = step = 0
    try:
        while at < len(data):
            count = counts[step % len(counts)]
            reader.feed(data[at : at + count])
            at, step = at + count, step + 1
        return what_was_read(reader)
    except WireFormatError as error:
        return str(error)


def what_was_read(reader: MessageReader[Any]) -> object:
    root, buffers = reader.finish()
    return msgspec.msgpack.encode(root), [bytes(buffer) for buffer in buffers]


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, len(GOOD) - 1),
    st.integers(0, 255),
    st.integers(0, len(GOOD) + 70),
    st.lists(st.integers(1, 3000), min_size=1),
)
@example(0, GOOD[0], len(GOOD), [1])
def test_what_is_read_in_parts_is_what_is_read_at_once(place: int, byte: int, end: int, counts: list[int]) -> None:
    data = bytearray(GOOD + b"x" * 70)
    data[place] = byte
    cut = bytes(data[:end])
    assert read_in_parts(cut, counts) == read_in_parts(cut, [1 << 20])

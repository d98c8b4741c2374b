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

from twinkle_http.wire.decode import decode
from twinkle_http.wire.encode import NODE, encode
from twinkle_http.wire.errors import WireFormatError
from twinkle_http.wire.frame import FrameReader, Tree, frame
from twinkle_http.wire.limits import Limits
from twinkle_remote.values import TypeNames

TYPES = TypeNames()
SMALL = Limits(body=1 << 20, tree=1 << 16, buffers=16, depth=20)


def node(index: int) -> Any:
    return msgspec.msgpack.Ext(NODE, index.to_bytes(4, "little"))


def message(root: Any, nodes: list[Any], buffers: list[bytes]) -> bytes:
    tree = Tree(root, nodes, [len(buffer) for buffer in buffers])
    return frame(tree, [memoryview(buffer) for buffer in buffers]).to_bytes()


def read(data: bytes, limits: Limits = SMALL) -> Any:
    return decode([data], TYPES, limits=limits)


GOOD = encode({"a": np.arange(300), "b": (1, {2: b"x" * 2000}), "c": [2**70, 1j]}, TYPES).to_bytes()


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
TAGS = (
    "tuple set frozenset dict bytes bytearray range slice array scalar tensor parameter dtype enum named data int date"
)
parts = st.recursive(
    plain | st.binary(max_size=8) | st.integers(0, 5).map(node),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
nodes = st.lists(st.tuples(st.sampled_from(TAGS.split()), st.lists(parts, max_size=4)), max_size=5)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(parts, nodes, st.lists(st.binary(max_size=80), max_size=3))
def test_any_tree_is_a_value_or_an_error(root: Any, made: list[tuple[str, list[Any]]], buffers: list[bytes]) -> None:
    data = message(root, [[tag, *rest] for tag, rest in made], buffers)
    try:
        read(data)
    except WireFormatError:
        return


@pytest.mark.parametrize(
    ("root", "made", "buffers", "text"),
    [
        (node(0), [["tuple", [node(0)]]], [], "named before it is defined"),
        (node(1), [["tuple", [1]], ["tuple", [node(0), node(0)]]], [], "a container that is named twice"),
        (node(0), [["array", "|O", [1], 0]], [b"12345678"], "is no dtype of an array"),
        (node(0), [["array", "<i8", [1 << 61, 8], 0]], [b""], "does not fill"),
        (node(0), [["array", "<i8", [-1], 0]], [b""], "is no shape"),
        (node(0), [["array", "<i8", [2], 0]], [b"12345678"], "does not fill a buffer of 8 bytes"),
        (node(0), [["tensor", "torch.nn.Module", [1], False, 0]], [b"1"], "is no dtype of a tensor"),
        (node(0), [["data", "builtins.object", {}]], [], "is not known here"),
        (node(0), [["data", "os.system", {"command": "true"}]], [], "is not known here"),
        (node(0), [["dict", [[[1], 2]]]], [], "does not hold what it should"),
        (node(0), [["set", [1, 1]]], [], "two equal members"),
        (node(0), [["range", [0, 1, 0]]], [], "does not hold what it should"),
        (node(0), [["int", "f" * 5000]], [], "at most 4300 characters"),
        (node(0), [["int", "__import__"]], [], "is no int"),
        (node(0), [["ref", "1"]], [], "is not known"),
        (b"raw", [], [], "bytes stand in a node"),
        ({1: 2}, [], [], "keys of a plain dict are text"),
    ],
)
def test_what_a_message_may_not_hold(root: Any, made: list[Any], buffers: list[bytes], text: str) -> None:
    with pytest.raises(WireFormatError, match=text):
        read(message(root, made, buffers))


def test_nesting_is_bounded_by_lists_and_by_nodes() -> None:
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    with pytest.raises(WireFormatError, match="at most 20 values deep"):
        read(message(deep, [], []))
    chain = [["tuple", []], *(["tuple", [node(i)]] for i in range(50))]
    with pytest.raises(WireFormatError, match="at most 20 values deep"):
        read(message(node(50), chain, []))
    bomb = b"\x91" * 60_000 + b"\x90"  # MessagePack itself, nested 60,000 times
    with pytest.raises(WireFormatError):
        read(struct.pack("<4sQ", b"TWK\x01", len(bomb)) + bomb + bytes(-(12 + len(bomb)) % 64))


def test_limits_hold_before_memory_is_taken() -> None:
    for head, text in (
        (struct.pack("<4sQ", b"TWK\x01", 1 << 40), "the tree of a message has at most"),
        (struct.pack("<4sQ", b"TWK\x02", 10), "has version 2 of the wire, and this side reads 1"),
        (b"GET / HTTP/1", "does not begin with TWK"),
    ):
        with pytest.raises(WireFormatError, match=text):
            read(head)
    claimed = msgspec.msgpack.encode([None, [], [1 << 30]])
    data = struct.pack("<4sQ", b"TWK\x01", len(claimed)) + claimed + bytes(-(12 + len(claimed)) % 64)
    with pytest.raises(WireFormatError, match="buffers of a message have at most"):
        read(data)
    tracemalloc.start()
    reader: FrameReader[Any] = FrameReader(Limits())
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
    reader: FrameReader[Any] = FrameReader(Limits())
    for chunk in sent.chunks(1 << 16):
        reader.feed(chunk)
    reader.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20  # beside the buffer's own memory, which is mapped


def read_in_parts(data: bytes, counts: list[int]) -> object:
    """Tree and buffers, or the error: fed so many bytes at a time."""
    reader: FrameReader[Any] = FrameReader(SMALL)
    at = step = 0
    try:
        while at < len(data):
            count = counts[step % len(counts)]
            reader.feed(data[at : at + count])
            at, step = at + count, step + 1
        return what_was_read(reader)
    except WireFormatError as error:
        return str(error)


def what_was_read(reader: FrameReader[Any]) -> object:
    tree, buffers = reader.finish()
    return msgspec.msgpack.encode(tree), [bytes(buffer) for buffer in buffers]


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

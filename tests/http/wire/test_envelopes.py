"""Envelopes arrive as they were sent, and what is none is refused, whatever its bytes."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_http.wire.decode import values_of
from twinkle_http.wire.encode import encode_request
from twinkle_http.wire.envelopes import (
    CALL_UPDATE,
    UNREAD,
    UPDATE_ANSWER,
    UPDATE_REQUEST,
    CallRequest,
    CallUpdate,
    RankUpdate,
    Refusal,
    UpdateAnswer,
    UpdateRequest,
    packed,
    read_request,
    unpacked,
)
from twinkle_http.wire.errors import WireFormatError, WireTypeError
from twinkle_http.wire.frame import read_frame, read_piece
from twinkle_http.wire.limits import Limits
from twinkle_remote.values import TYPES


def arrived(request: CallRequest) -> CallRequest:
    """A request as the server has it."""
    message = encode_request(request, TYPES, what="f", named=lambda value, part: None)
    tree, buffers = read_frame(message.chunks(), Limits(), UNREAD)
    found = read_request(tree.root)
    roots = (found.args, found.kwargs, found.mesh)
    found.args, found.kwargs, found.mesh = values_of(roots, tree.nodes, buffers, TYPES)
    return found


def test_a_request_arrives_with_its_values() -> None:
    args: list[Any] = [1, "x", (2, b"y" * 3000), [None, 1.5, [True]], {1: {2}}]
    found = arrived(CallRequest("method", "g", "i", "f", args, {"key": {"a": [2**70]}}, line="x.py:1", ranks=[1]))
    assert found.args == args and found.kwargs == {"key": {"a": [2**70]}}
    assert (found.kind, found.group, found.instance, found.target, found.ranks) == ("method", "g", "i", "f", [1])
    assert arrived(CallRequest("next")) == CallRequest("next")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([object()], r"f\['args'\]\[0\] is an object"),
        (["\ud800"], "lone surrogates"),
        ([[object()]], r"f\['args'\]\[0\]\[0\]"),
    ],
)
def test_an_argument_that_does_not_travel_is_named(args: list[Any], text: str) -> None:
    with pytest.raises(WireTypeError, match=text):
        arrived(CallRequest("method", args=args))


@pytest.mark.parametrize("root", [[1], 5, {"floor": "x"}, {"drop": [1]}, {"drop": 5}, b"x"])
def test_what_is_no_request_is_refused(root: Any) -> None:
    with pytest.raises(WireFormatError, match="no request of a call"):
        read_request(msgspec.Raw(msgspec.msgpack.encode(root)))


def test_nesting_is_bounded_in_what_is_read_later() -> None:
    tree = b"\x93" + b"\x91" * 100_000 + b"\x90\x90\x90"
    data = struct.pack("<4sQ", b"TWK\x01", len(tree)) + tree + bytes(-(12 + len(tree)) % 64)
    with pytest.raises(WireFormatError, match="cannot be read"):
        read_frame([data], Limits(), UNREAD)
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    root = msgspec.Raw(msgspec.msgpack.encode({"args": [deep]}))
    with pytest.raises(WireFormatError, match="at most 100 values deep"):
        values_of((read_request(root).args,), [], [], TYPES)


UPDATE = CallUpdate(
    "r7",
    done=True,
    rows=3,
    scalar=[None],
    value=b"value",
    error=b"error",
    first=["a", "b", "c", "d", "e"],
    ranks=[RankUpdate([1, None], ["x", False], outlives=True)],
    refused=Refusal(429, "TooMany", "why", "request"),
)
GOOD = packed(UpdateAnswer([(1, UPDATE), (2, CallUpdate(line="printed", is_error=True))], draining=True))


def test_updates_arrive_as_they_were_sent() -> None:
    assert unpacked(GOOD, UPDATE_ANSWER).updates == [(1, UPDATE), (2, CallUpdate(line="printed", is_error=True))]
    assert unpacked(packed(UPDATE), CALL_UPDATE) == UPDATE
    assert unpacked(packed(UpdateRequest(5, 0.5, 7, ["r1"])), UPDATE_REQUEST) == UpdateRequest(5, 0.5, 7, ["r1"])


@settings(max_examples=120, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
def test_a_changed_or_cut_envelope_is_one_or_an_error(place: int, byte: int, end: int) -> None:
    data = bytearray(GOOD)
    data[place] = byte
    try:
        unpacked(bytes(data[:end]), UPDATE_ANSWER)
    except WireFormatError:
        return


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
def test_one_piece_is_read_as_its_parts_are(place: int, byte: int, end: int) -> None:
    data = bytearray(GOOD)
    data[place] = byte
    cut = bytes(data[:end])
    results: list[Any] = []
    readers: list[Any] = [lambda: read_piece(cut, Limits()), lambda: read_frame([cut[:7], cut[7:]], Limits())]
    for read in readers:
        try:
            results.append(read()[0])
        except WireFormatError as error:
            results.append(str(error))
    assert repr(results[0]) == repr(results[1])

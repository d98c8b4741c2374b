"""Envelopes arrive as they were sent, and what is none is refused, whatever its bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_http.messages import (
    CALL_REQUEST,
    CALL_UPDATE,
    UPDATE_ANSWER,
    UPDATE_REQUEST,
    CallRequest,
    CallUpdate,
    Figures,
    Refusal,
    UpdateAnswer,
    UpdateRequest,
    WireFormatError,
    framed,
    packed,
    unpacked,
)


@pytest.mark.parametrize("root", [[1], 5, {"floor": "x"}, {"drop": [1]}, {"drop": 5}, b"x"])
def test_what_is_no_request_is_refused(root: Any) -> None:
    with pytest.raises(WireFormatError, match="cannot be read"):
        unpacked(framed(root).to_bytes(), CALL_REQUEST)


def test_requests_and_updates_arrive_as_they_were_sent() -> None:
    request = CallRequest("method", "g", "i", "f", [1, "x"], {"key": [2]}, eager=True)
    assert unpacked(packed(request), CALL_REQUEST) == request


UPDATE = CallUpdate(
    "r7",
    value=b"value",
    error=b"error",
    figures=Figures(3, is_list=True, columns=["a", "b"]),
    refused=Refusal(429, "TooMany", "why", "request"),
)
GOOD = packed(UpdateAnswer([(1, UPDATE), (2, CallUpdate("r2"))], draining=True))


def test_updates_arrive_as_they_were_sent() -> None:
    assert unpacked(GOOD, UPDATE_ANSWER).updates == [(1, UPDATE), (2, CallUpdate("r2"))]
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

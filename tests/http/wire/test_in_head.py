"""A message in the head of a request is read as one in its body, is bounded, and is refused beside a body."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from twinkle_http.wire.decode import decode
from twinkle_http.wire.encode import encode
from twinkle_http.wire.envelopes import UPDATE_ANSWER, UpdateRequest, packed, unpacked
from twinkle_http.wire.errors import WireFormatError
from twinkle_http.wire.in_head import HEADER, MOST_BYTES, from_header, to_header
from twinkle_remote import get, on, remote_class, remote_function, session
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

TOKEN = "a token of these tests"
ASKED = packed(UpdateRequest(0, 0.0, 0, []))


@remote_class()
class Echo:
    @remote_function(dispatch="all", collect="first")
    def of(self, text: str) -> str:
        return text


SERVER = """
    import sys
    from tests.http.wire.test_in_head import TOKEN, Echo
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session

    with session("threads", groups=[DeviceGroup("g", 1, "CPU")]), serve([Echo], port=0, token=TOKEN) as server:
        print(server.address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with serving(SERVER) as found:
        yield found


def asked(address: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Any:
    given = {"authorization": f"Bearer {TOKEN}", **headers}
    return urllib3.request("POST", f"{address}/twinkle/1/{path}", headers=given, body=body, retries=False)


def opened(address: str) -> dict[str, str]:
    answer = asked(address, "open", {}, encode({}, TYPES).to_bytes())
    return {"twinkle-client": decode([answer.data], TYPES)["client"]}


@pytest.mark.parametrize("size", [0, 1, 2, 3, 64, MOST_BYTES])
def test_a_message_comes_back_from_its_header(size: int) -> None:
    message = os.urandom(size)
    assert from_header(to_header(message)) == from_header(to_header(message).encode()) == message


@pytest.mark.parametrize("value", ["a", "ab=", "a b=", "\u00e9\u00e9\u00e9\u00e9", "abc=d", "=abc"])
def test_what_is_no_base64_is_refused(value: str) -> None:
    with pytest.raises(WireFormatError, match="base64"):
        from_header(value)


def test_it_is_bounded() -> None:
    with pytest.raises(WireFormatError, match="send a body"):
        from_header(base64.b64encode(bytes(MOST_BYTES + 1)))


def test_the_answer_is_where_the_request_was(address: str) -> None:
    client = opened(address)
    in_head = asked(address, "updates", client | {HEADER: to_header(ASKED)})
    in_body = asked(address, "updates", client, ASKED)
    assert in_head.status == in_body.status == 200
    assert in_head.data == b"" and HEADER not in in_body.headers
    assert from_header(in_head.headers[HEADER]) == in_body.data
    assert unpacked(in_body.data, UPDATE_ANSWER).updates == []


@pytest.mark.parametrize("cut", range(1, len(ASKED), 7))
def test_a_message_that_is_cut_off_is_refused(address: str, cut: int) -> None:
    answer = asked(address, "updates", opened(address) | {HEADER: to_header(ASKED[:cut])})
    assert answer.status == 400 and answer.json()["error"]["type"] == "Malformed"


@pytest.mark.parametrize(
    ("value", "body"),
    [(to_header(ASKED), ASKED), (to_header(ASKED), b"x"), ("?", None), (to_header(bytes(2000)), None)],
)
def test_what_is_not_one_small_message_is_refused(address: str, value: str, body: bytes | None) -> None:
    answer = asked(address, "updates", opened(address) | {HEADER: value}, body)
    assert answer.status == 400 and answer.json()["error"]["type"] == "Malformed"


@pytest.mark.parametrize("size", [0, 500, 700, 800, 900, 1000, 1100, 5000])
def test_calls_on_both_sides_of_the_bound_are_the_same(address: str, size: int) -> None:
    with session("http", address=address, token=TOKEN):
        assert get(on("g").create(Echo).of("\u00e9" * size)) == "\u00e9" * size

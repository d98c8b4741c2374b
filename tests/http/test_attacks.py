"""What a stranger, or a client gone wrong, sends over a raw socket."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.http.raw import ONE, TWO, Raw, refused

from twinkle_http.wire import encode
from twinkle_mesh import DeviceGroup
from twinkle_remote import initialize, on, remote_class, remote_function, session
from twinkle_remote.errors import AlreadyInitializedError, BackendError, DispatchError, NotInitializedError
from twinkle_remote.sessions.session import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow  # the server takes seconds to end
SERVER = """
    import sys
    from twinkle_http.server import serve as ending
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session
    from tests.conformance.subjects.components import Counter

    ending.LAST_UPDATE_SECONDS = 0.2  # at its end, for clients that have not read: those of these tests never do
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        tokens = {"one": "token number one", "two": "token number two"}
        with serve([Counter], port=0, token=tokens, max_body=100_000, lease=float(sys.argv[1])) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
COUNTER = "tests.conformance.subjects.components.Counter"


@remote_class()
class Unserved:
    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    @remote_function()
    def method(self) -> int:
        return 1


@pytest.fixture(scope="module")
def raw(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[Raw]:
    with serving(SERVER, "60") as address:
        yield Raw(address)


def test_health_needs_no_token_and_tells_nothing(raw: Raw) -> None:
    assert raw.request("GET", "/health", authorization="") == (204, b"")


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer token number on", "Basic token number one", "Bearer"])
def test_a_request_without_a_known_token_is_refused(raw: Raw, header: str) -> None:
    for path in ("/twinkle/1/open", "/twinkle/1/call", "/nothing"):
        status, body = raw.request("POST", path, authorization=header)
        assert status == 401 and b"token number" not in body


def test_an_oversized_body_is_refused_before_it_is_read(raw: Raw) -> None:
    client = raw.open()
    head = raw.head("POST", "/twinkle/1/call", 10**12, twinkle_client=client, twinkle_request="1")
    assert raw.send(head)[0] == 413
    framing = {"content_length": "", "transfer_encoding": "chunked"}
    chunked = raw.head("POST", "/twinkle/1/call", 0, twinkle_client=client, twinkle_request="2", **framing)
    piece = b"TWK\x01" + (10**6).to_bytes(8, "little") + b"x" * 200_000
    assert raw.send(chunked + f"{len(piece):x}\r\n".encode() + piece + b"\r\n0\r\n\r\n")[0] in (400, 413)


def test_what_is_no_message_is_refused(raw: Raw) -> None:
    client = raw.open()
    for body in (b"", b"{}", b"TWK\x01", b"TWK\x02" + bytes(100), bytes(1000)):
        status, _ = raw.request("POST", "/twinkle/1/call", body, twinkle_client=client, twinkle_request="1")
        assert status == 400
    for request in ([1], {"kind": "method"}, {"kind": "function"}, {"kind": "method", "args": 5}):
        status, answer = raw.post("/call", request, twinkle_client=client, twinkle_request=f"{len(str(request))}")
        assert status == 400 or answer.unsent, answer


def test_foreign_ids_get_the_answer_of_unknown_ones(raw: Raw) -> None:
    mine, other = raw.open(), raw.open(TWO)
    raw.build(mine, COUNTER, instance="mine")
    assert raw.call(mine, 500, kind="method", target="add", instance="mine")[0] == 200
    answers = []
    for instance in ("mine", "nobody's"):
        _, answer = raw.call(other, 100 + len(instance), TWO, kind="method", target="add", instance=instance)
        assert type(refused(answer)) is NotInitializedError
        answers.append(re.sub(r"\(request .*\)", "", str(refused(answer))).replace(instance, "").replace('"', "'"))
    assert answers[0] == answers[1]
    for name in ("r500", "r77"):
        for path in ("/read", "/cancel"):
            status, answer = raw.post(path, {"name": name}, TWO, twinkle_client=other)
            assert (status, answer["type"]) == (404, "Unknown")
    status, answer = raw.call(mine, 501, TWO, kind="method", target="add", instance="mine")
    assert status == 410, answer


def test_rows_of_results_are_their_clients(raw: Raw) -> None:
    mine, other = raw.open(), raw.open()
    raw.build(mine, COUNTER, instance="rows")
    assert raw.call(mine, 600, kind="method", target="add", instance="rows")[0] == 200
    for name in ("r600", "r601"):
        assert raw.post("/read", {"name": name, "rows": [0]}, twinkle_client=other)[0] == 404
    assert raw.value(mine, 600) == 1
    for rows in ([7], [True], [[0]], ["0"], 5, "r600", {"a": 1}):
        status, answer = raw.post("/read", {"name": "r600", "rows": rows}, twinkle_client=mine)
        assert status == 400 or "error" in answer, answer


def test_only_remote_functions_of_served_classes_are_called(raw: Raw) -> None:
    client = raw.open()
    raw.build(client, COUNTER, instance="it")
    targets = ("private", "__init__", "__class__", "__reduce__", "value", "hidden", "kind", "twice", "", "add.__call__")
    for number, target in enumerate(targets):
        _, answer = raw.call(client, 100 + number, kind="method", target=target)
        assert type(refused(answer)) is DispatchError, (target, refused(answer))
    for number, name in enumerate(("os.system", "builtins.eval", f"{COUNTER}.add", "Faulty")):
        _, answer = raw.call(client, 200 + number, kind="create", target=name)
        assert type(refused(answer)) is DispatchError, (name, refused(answer))
    _, answer = raw.call(client, 300, kind="function", target="os.system")
    assert type(refused(answer)) is DispatchError


def test_nested_requests_are_refused(raw: Raw) -> None:
    client = raw.open()
    value: Any = 1
    for _ in range(90):
        value = [value]
    body = encode({"kind": "method", "args": [value]}).to_bytes()
    one_list = b"\x91"  # of msgpack: what follows is its item
    assert body.count(one_list * 90) == 1
    deep = body.replace(one_list * 90, one_list * 5_000, 1)
    began = time.monotonic()
    for number, sent in enumerate((deep, deep.replace(one_list * 5_000, one_list * 50_000, 1))):
        status, answer = raw.request(
            "POST", "/twinkle/1/call", sent, twinkle_client=client, twinkle_request=f"{number}"
        )
        assert status == 400 or b"values deep here" in answer, answer
    assert time.monotonic() - began < 30.0


def test_a_request_that_is_sent_again_runs_once(raw: Raw) -> None:
    client = raw.open()
    raw.build(client, COUNTER, instance="once")
    first = raw.call(client, 50, kind="method", target="add", instance="once")
    again = [raw.call(client, 50, kind="method", target="add", instance="once") for _ in range(5)]
    assert all(answer == first for answer in again)
    raw.call(client, 51, kind="method", target="add", instance="once")
    assert raw.value(client, 51) == raw.value(client, 50) + 1
    raw.call(client, 52, kind="method", target="add", instance="once", floor=52)
    assert raw.call(client, 50, kind="method", target="add", instance="once")[0] == 409


def test_a_client_killed_in_the_middle_of_an_upload_has_no_effect(raw: Raw) -> None:
    client = raw.open()
    raw.build(client, COUNTER, instance="cut")
    raw.call(client, 60, kind="method", target="current", instance="cut")
    request = {"kind": "method", "target": "add", "group": "group", "instance": "cut", "args": [5], "kwargs": {}}
    body = encode({**request, "line": "x" * 200}).to_bytes()
    head = raw.head("POST", "/twinkle/1/call", len(body), twinkle_client=client, twinkle_request="61")
    for part in (0, 10, len(body) // 2, len(body) - 1):
        with raw.connected() as connection:
            connection.sendall(head + body[:part])
    raw.call(client, 62, kind="method", target="current", instance="cut")
    assert raw.value(client, 60) == raw.value(client, 62)


@pytest.mark.slow
def test_a_client_that_vanished_loses_its_components(serving: Callable[..., AbstractContextManager[str]]) -> None:
    with serving(SERVER, "1.0") as address:
        raw = Raw(address)
        gone, other = raw.open(), raw.open()
        raw.build(gone, COUNTER, instance="lost")
        until = time.monotonic() + 60.0
        status, number = 0, 1000
        while status != 410 and time.monotonic() < until:
            _, answer = raw.call(other, number, kind="method", target="add", instance="lost")
            number += 1
            if answer.unsent:
                status, answer = raw.call(gone, 7, kind="method", target="add", instance="lost")
        assert status == 410 and answer["type"] == "LeaseEnded"
        _, answer = raw.call(other, number, kind="method", target="add", instance="lost")
        assert type(refused(answer)) is NotInitializedError


def test_a_client_is_told_what_it_did_wrong(raw: Raw) -> None:
    address = f"http://{raw.host}"
    with (
        pytest.raises(BackendError, match="token is not known") as caught,
        session("http", address=address, token="no such token"),
    ):
        pass
    assert "no such token" not in str(caught.value)
    for bad in ("http://example.com:1", "ftp://127.0.0.1", "http://127.0.0.1/path"):
        with pytest.raises(BackendError, match="address="), session("http", address=bad, token=ONE):
            pass
    groups = [DeviceGroup("group", 3, "CPU")]
    with (
        pytest.raises(AlreadyInitializedError, match="group 'group' is another one at the server"),
        session("http", groups=groups, address=address, token=ONE),
    ):
        pass
    with session("http", address=address, token=ONE):
        with pytest.raises(AlreadyInitializedError, match="token: another one before") as caught_again:
            initialize("http", address=address, token=TWO)
        assert not any(token in text for token in (ONE, TWO) for text in (str(caught_again.value), repr(running())))
        with pytest.raises(DispatchError, match="is not served"):
            on("group").create(Unserved)
        with pytest.raises(DispatchError, match="100000"):
            on("group").create(Unserved, b"x" * 200_000)

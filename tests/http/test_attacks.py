"""What a stranger, or a client gone wrong, sends over a raw socket: to Twinkle's own routes, and to those of JSON."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.subjects.components import Counter
from tests.http.raw import ONE, TWO, Raw

from twinkle_http.wire import encode
from twinkle_mesh import DeviceGroup
from twinkle_remote import get, initialize, on, remote_class, session
from twinkle_remote.errors import AlreadyInitializedError, BackendError, DispatchError, NotInitializedError
from twinkle_remote.sessions.session import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # the server takes seconds to end
COUNTER = "tests.conformance.subjects.components.Counter"


@remote_class()
class Unserved:
    """A class that the server does not serve."""

    def __init__(self, data: bytes = b"") -> None: ...


def test_health_needs_no_token_and_tells_nothing(raw: Raw) -> None:
    assert raw.request("GET", "/health", authorization="") == (204, b"")


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer token number on", "Basic token number one", "Bearer"])
def test_a_request_without_a_known_token_is_refused(raw: Raw, header: str) -> None:
    component = "/v1/Adder/0123456789abcdef"
    routes = ("/twinkle/1/open", "/twinkle/1/call", "/nothing", "/v1/Adder", f"{component}/add")
    for method, path in [*(("POST", path) for path in routes), ("DELETE", component), ("GET", "/openapi.json")]:
        status, body = raw.request(method, path, authorization=header)
        assert status == 401 and b"token number" not in body and b"Adder" not in body.replace(path.encode(), b"")


def test_an_oversized_body_is_refused_before_it_is_read(raw: Raw) -> None:
    own = {"twinkle_client": raw.open(), "twinkle_request": "1"}
    adder = raw.new("Adder")
    for path, begin in (("/twinkle/1/call", b"TWK3" + (10**6).to_bytes(8, "little")), (f"/v1/{adder}/add", b'{"x": ')):
        for length in (10**12, 100_001):
            assert raw.send(raw.head("POST", path, length, **own))[0] == 413
        for text in ("-1", "1e3", "0x10", "1 1", "9" * 30, "+5"):
            assert raw.send(raw.head("POST", path, None, content_length=text, **own) + b"{}")[0] in (400, 413)
        piece = begin + b"1" * 200_000
        chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n0\r\n\r\n"
        assert raw.send(raw.head("POST", path, None, transfer_encoding="chunked", **own) + chunk)[0] == 413
    assert raw.result(f"{adder}/current") == 0


def test_what_is_no_message_is_refused(raw: Raw) -> None:
    client = raw.open()
    for body in (b"", b"{}", b"TWK\x01", b"TWK\x02" + bytes(100), bytes(1000)):
        status, _ = raw.request("POST", "/twinkle/1/call", body, twinkle_client=client, twinkle_request="1")
        assert status == 400
    for request in ([1], {"kind": "method"}, {"kind": "function"}, {"kind": "method", "args": 5}):
        status, answer = raw.post("/call", request, twinkle_client=client, twinkle_request=f"{len(str(request))}")
        assert status == 400 or answer.unsent, answer


def test_foreign_ids_get_the_answer_of_unknown_ones(raw: Raw) -> None:
    mine, other, beside = raw.open(), raw.open(TWO), raw.open()
    raw.build(mine, COUNTER, instance="mine")
    assert raw.call(mine, 500, kind="method", target="add", instance="mine")[0] == 200
    answers = []
    for instance in ("mine", "nobody's"):
        error = raw.refusal(other, TWO, kind="method", target="add", instance=instance)
        assert type(error) is NotInitializedError
        answers.append(re.sub(r"\(request .*\)", "", str(error)).replace(instance, "").replace('"', "'"))
    assert answers[0] == answers[1]
    for name in ("r500", "r77"):  # results belong to a client
        for path in ("/read", "/cancel"):
            for client, token in ((other, TWO), (beside, ONE)):
                status, answer = raw.post(path, {"name": name, "rows": [0]}, token, twinkle_client=client)
                assert (status, answer["type"]) == (404, "Unknown")
    assert raw.call(mine, 501, TWO, kind="method", target="add", instance="mine")[0] == 410
    assert raw.value(mine, 500) == 1
    for rows in ([7], [True], [[0]], ["0"], 5, "r500", {"a": 1}):
        status, answer = raw.post("/read", {"name": "r500", "rows": rows}, twinkle_client=mine)
        assert status == 400 or "error" in answer, answer


def test_what_one_tenant_has_in_json_is_unknown_to_another(raw: Raw) -> None:
    _, _, id_ = raw.new("Adder").partition("/")
    foreign, unknown = (raw.error(f"Adder/{one}/add", {}, TWO) for one in (id_, "f" * 16))
    assert foreign[:2] == unknown[:2] == (404, "Unknown")
    assert foreign[2].replace(id_, "") == unknown[2].replace("f" * 16, "")
    assert raw.ask("DELETE", f"Adder/{id_}", token=TWO)[0] == 404
    assert raw.error(f"{raw.new('Adder', TWO)}/other", {"adder": id_}, TWO)[:2] == (404, "Unknown")


def test_only_remote_functions_of_served_classes_are_called(raw: Raw) -> None:
    client = raw.open()
    raw.build(client, COUNTER, instance="it")
    methods = ("private", "__init__", "__class__", "__reduce__", "value", "hidden", "kind", "twice", "", "add.__call__")
    classes = ("os.system", "builtins.eval", f"{COUNTER}.add", "Faulty")
    for kind, names in (("method", methods), ("create", classes), ("function", ("os.system",))):
        for name in names:
            assert type(raw.refusal(client, kind=kind, target=name)) is DispatchError, name
    adder = raw.new("Adder")
    for method in ("private", "__init__", "__class__", "__reduce__", "total", "__len__", "add.x", "%2e%2e", "add%00"):
        assert raw.error(f"{adder}/{method}")[:2] == (403, "NotServed"), method
    for name in ("os.system", "Sample", "builtins.eval", "Point"):
        assert raw.error(name)[:2] == (403, "NotServed")
    assert raw.error(f"Kinds/{adder.partition('/')[2]}/floats")[:2] == (404, "Unknown")


def test_a_path_reaches_no_other_place(raw: Raw) -> None:
    adder = raw.new("Adder")
    for path in (
        "../health",
        "Adder/../../health",
        "%2e%2e/health",
        f"{adder}/add/../private",
        f"{adder}/%00",
        f"{adder}//add",
        f"{adder}/add/",
        f"{adder.replace('Adder', 'Adder.add')}/add",
        "os/system/x",
        "__main__.Adder/x/add",
    ):
        assert raw.request("POST", f"/v1/{path}")[0] in (307, 400, 403, 404, 405), path
    for method in ("GET", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD"):
        assert raw.send(raw.head(method, f"/v1/{adder}/add", 0))[0] in (400, 404, 405), method
    assert raw.result(f"{adder}/current") == 0


def test_nested_requests_are_refused(raw: Raw) -> None:
    client = raw.open()
    value: Any = 1
    for _ in range(90):
        value = [value]
    body = encode({"kind": "method", "args": [value]}).to_bytes()
    one_list = b"\x91"  # of msgpack: what follows is its item
    assert body.count(one_list * 90) == 1
    began = time.monotonic()
    for number, deep in enumerate((5_000, 50_000)):
        own = {"twinkle_client": client, "twinkle_request": f"{number}"}
        status, answer = raw.request("POST", "/twinkle/1/call", body.replace(one_list * 90, one_list * deep, 1), **own)
        assert status == 400 or b"values deep here" in answer, answer
    assert time.monotonic() - began < 30.0


def test_odd_json_is_answered_within_bounds(raw: Raw) -> None:
    adder = raw.new("Adder")
    for body in (
        b"[" * 99_000,
        b'{"amount":' * 9_000,
        b'{"amount": ' + b"9" * 90_000 + b"}",
        b'{"amount": 1e400}',
        b'{"amount": NaN}',
        b'{"amount": "\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"amount": 1, "amount": "x"}',
        b'{"amount": true}',
        b"\xef\xbb\xbf{}",
        b"\xff",
        b"{",
        b"{}{}",
        b"null",
        b"{'amount': 1}",
        b'{"texts": [' + b'"",' * 20_000 + b'""]}',
        json.dumps({f"k{i}": i for i in range(5_000)}).encode(),
    ):
        began = time.monotonic()
        status, text = raw.request("POST", f"/v1/{adder}/add", body)
        assert status == 400, (body[:40], status, text)
        assert len(text) < 5_000 and time.monotonic() - began < 20.0
    assert raw.result(f"{adder}/current") == 0


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


def test_requests_have_ids_in_errors_and_logs_of_both_sides(raw: Raw, log: Path) -> None:
    """Also: nothing of a client is unescaped in the log of this file's server, and no token is in it."""
    with session("http", address=f"http://{raw.host}", token=ONE):
        counter = on("group").create(Counter)
        assert counter.add(3) == 3
        with pytest.raises(TypeError) as caught:
            get(counter.add("x"))  # type: ignore[arg-type]  # what is tested
        with pytest.raises(DispatchError, match=r"\(request [0-9a-f]{8}-\d+\)"):
            on("group").create(Unserved)
    at = r"called from .*test_attacks.py:\d+\n.*\n  request ([0-9a-f]{8}-\d+)"
    of_call = re.search(at, str(caught.value), re.DOTALL)
    assert of_call, str(caught.value)
    status, answer = raw.ask("POST", "Counter", {"start": "x"})
    own = answer["error"]["request"]
    assert status == 400 and re.fullmatch(r"[0-9a-f]{8}-\d+", own)
    assert raw.request("POST", "/nothing", authorization="Bearer of bad news")[0] == 401
    assert raw.error("Counter/%0aWARNING%20forged%1b%5b31m/%22x")[0] == 403
    lines = log.read_text(encoding="utf-8").splitlines()
    calls = [line for line in lines if line.startswith("twinkle.http.access INFO")]
    for pattern in (
        r"one Counter.add done, \d\.\d{4} s, request [0-9a-f]{8}-\d+$",
        rf"one Counter.add failed with TypeError, .*, request {of_call[1]}$",
        r"one Counter.__init__ done",
        rf"one POST '/v1/Counter' 400 InvalidArguments.*{own}",
        r"- POST '/nothing' 401 Token",
        r"'/v1/Counter/\\nWARNING forged\\x1b\[31m/",
    ):
        assert any(re.search(pattern, line) for line in calls), (pattern, calls)
    assert not any(word in line for line in lines for word in (ONE, TWO, "bad news", "\x1b"))
    assert not any(line.startswith("WARNING forged") for line in lines)

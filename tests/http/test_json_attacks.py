"""What a stranger, or a client gone wrong, sends to the JSON routes over a raw socket."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.http.raw import ONE, TWO, Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow

SUBJECTS = (Path(__file__).parent / "json_subjects.py").read_text(encoding="utf-8")
ROUTES = (
    ("POST", "/v1/Adder"),
    ("POST", "/v1/Adder/0123456789abcdef/add"),
    ("DELETE", "/v1/Adder/0123456789abcdef"),
)


class Wire(Raw):
    """Requests in JSON."""

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        status, found = self.request(method, path, body, **headers)
        return status, found.decode()

    def new(self) -> str:
        status, text = self.ask("POST", "/v1/Adder", b"{}")
        assert status == 201, text
        return f"/v1/Adder/{json.loads(text)['id']}"

    def current(self, adder: str) -> Any:
        return json.loads(self.ask("POST", f"{adder}/current")[1])["result"]


@pytest.fixture(scope="module")
def wire(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[Wire]:
    with serving(SUBJECTS, "60") as address:
        yield Wire(address)


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer token number on", "Basic token number one", "Bearer"])
def test_every_route_needs_a_token(wire: Wire, header: str) -> None:
    for method, path in ROUTES:
        status, text = wire.ask(method, path, authorization=header)
        assert status == 401 and "token number" not in text and "Adder" not in text.replace(path, "")


def test_large_bodies_are_refused_before_they_are_read(wire: Wire) -> None:
    adder = wire.new()
    assert wire.send(wire.head("POST", f"{adder}/add", 10**12))[0] == 413
    assert wire.send(wire.head("POST", f"{adder}/add", 100_001))[0] == 413
    piece = b'{"amount": ' + b"1" * 200_000
    chunk = f"{len(piece):x}\r\n".encode() + piece + b"\r\n0\r\n\r\n"
    assert wire.send(wire.head("POST", f"{adder}/add", None, transfer_encoding="chunked") + chunk)[0] == 413
    for length in ("-1", "1e3", "0x10", "1 1", "9" * 30, "+5"):
        assert wire.send(wire.head("POST", f"{adder}/add", None, content_length=length) + b"{}")[0] in (400, 413)
    assert wire.current(adder) == 0


def test_a_path_reaches_no_other_place(wire: Wire) -> None:
    adder = wire.new()
    for path in (
        "/v1/../health",
        "/v1/Adder/../../health",
        "/v1/%2e%2e/health",
        f"{adder}/add/../private",
        f"{adder}/%00",
        f"{adder}/add%00",
        f"{adder}//add",
        f"{adder}/add/",
        f"{adder.replace('Adder', 'Adder.add')}/add",
        "/v1/os/system/x",
        "/v1/Adder/x/__class__",
        "/v1/__main__.Adder/x/add",
        f"{adder}/add?amount=5",
    ):
        status, text = wire.ask("POST", path)
        assert status in (307, 400, 403, 404, 405) or path.endswith("amount=5"), (path, status, text)
    assert wire.current(adder) == 1
    for method in ("GET", "PUT", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD"):
        assert wire.send(wire.head(method, f"{adder}/add", 0))[0] in (400, 404, 405), method
    assert wire.current(adder) == 1


def test_headers_with_line_ends_or_odd_bytes_do_no_harm(wire: Wire) -> None:
    adder = wire.new()
    for text in ("a\nb", "a\rb", "a\x00b", "\x7f", "\x1b[31m", "x" * 300, "\u00ff"):
        status, body = wire.ask("POST", f"{adder}/add", b"{}", x_request_id=text)
        assert status in (200, 400), (text, body)
    assert "\x1b" not in wire.ask("POST", f"{adder}/add", b"{}", x_request_id="\x1b[31m")[1]
    many = wire.head("POST", f"{adder}/add", 0)[:-2] + b"".join(b"x-%d: y\r\n" % i for i in range(200_000)) + b"\r\n"
    with contextlib.suppress(ConnectionError):
        assert wire.send(many)[0] in (0, 400, 431)  # 2 MB of head


def test_odd_json_is_answered_within_bounds(wire: Wire) -> None:
    adder = wire.new()
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
        b"{}{}",
        b"null",
        b"{'amount': 1}",
        b'{"texts": [' + b'"",' * 20_000 + b'""]}',
        json.dumps({f"k{i}": i for i in range(5_000)}).encode(),
    ):
        began = time.monotonic()
        status, text = wire.ask("POST", f"{adder}/add", body)
        assert status == 400, (body[:40], status, text)
        assert len(text) < 5_000 and time.monotonic() - began < 20.0
    assert wire.current(adder) == 0


def test_a_token_is_in_no_answer(wire: Wire) -> None:
    adder = wire.new()
    answers = [wire.ask("POST", f"{adder}/{method}") for method in ("add", "fail", "private", "nothing")]
    assert not any(token in text for _, text in answers for token in (ONE, TWO))

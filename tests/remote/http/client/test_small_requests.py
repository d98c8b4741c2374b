"""Answers of any form arrive whole, however they are cut; one that is cut off is an error, and connections are kept."""

from __future__ import annotations

import socket
import threading
from http.client import HTTPException
from typing import TYPE_CHECKING

import pytest

from twinkle_remote.http.client.small_requests import SmallRequests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USUAL = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-Request-Id: a-1\r\n\r\nhello"
SENT = (
    (USUAL, 200, b"hello", True),
    (b"HTTP/1.1 200 \r\nContent-Length:0\r\n\r\n", 200, b"", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", 200, b"hello", False),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", 200, b"hello", True),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + USUAL, 200, b"hello", True),
    (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", 503, b"no", True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", False),
)


class Answering:
    """Answers each request on its connections with the next list of pieces; an empty piece closes the connection."""

    def __init__(self) -> None:
        self.answers: list[Sequence[bytes]] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.wait = 0.0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            near.settimeout(30.0)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            while request := near.recv(65536):
                self.requests.append(request)
                threading.Event().wait(self.wait)
                for piece in self.answers.pop(0):
                    if not piece:
                        return
                    near.sendall(piece)


@pytest.fixture
def other() -> Iterator[Answering]:
    other = Answering()
    yield other
    other.close()


@pytest.mark.parametrize(("sent", "status", "body", "kept"), SENT)
def test_an_answer_is_whole_however_it_is_cut(
    other: Answering, sent: bytes, status: int, body: bytes, kept: bool
) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    cuts = range(1, len(sent))
    for cut in cuts:
        other.answers.append([sent[:cut], sent[cut:]])
        found = small.post("/path", b"body", (("twinkle-client", "a"),), 10.0, 10.0, 1)
        assert (found[0], found[2]) == (status, body), cut
    assert other.connections == (1 if kept else len(cuts))
    head = f"POST /path HTTP/1.1\r\nHost: 127.0.0.1:{other.port}\r\ntwinkle-client: a\r\n"
    assert other.requests == [f"{head}content-length: 4\r\ntwinkle-request: 1\r\n\r\nbody".encode()] * len(cuts)
    small.close()


def test_an_answer_that_is_cut_off_is_an_error(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    for cut in [*range(USUAL.index(b"\r\n\r\n")), *range(USUAL.index(b"\r\n\r\n") + 4, len(USUAL))]:
        other.answers.append([USUAL[:cut], b""])
        try:
            status, headers, _ = small.post("/", b"", (), 10.0, 10.0)
        except (HTTPException, OSError):
            continue
        assert status == 200 and not headers.get("content-length", "").isdecimal()  # its user refuses that
    small.close()


def test_bytes_behind_an_answer_are_not_taken_for_the_next_one(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    for _ in range(3):
        other.answers.append([USUAL + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"])
        assert small.post("/", b"", (), 10.0, 10.0)[2] == b"hello"
    assert other.connections == 3
    small.close()


def test_headers_are_lines(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    for value in ("a\r\nb: c", "a\nb: c", "a\rb: c"):
        with pytest.raises(ValueError, match="Invalid header value"):
            small.post("/", b"", (("twinkle-client", value),), 10.0, 10.0)
    assert not other.requests


def test_what_is_not_http_is_an_error(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    both = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello"
    twice = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 4\r\n\r\nhello"
    for answer in (b"SSH-2.0-OpenSSH_9\r\n", both, twice, b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n"):
        other.answers.append([answer])
        with pytest.raises(HTTPException, match="not HTTP"):
            small.post("/", b"", (), 10.0, 10.0)
    small.close()


def test_a_body_without_a_length_ends_with_its_connection(other: Answering) -> None:
    """A proxy's own page of an error may be like that."""
    small = SmallRequests("127.0.0.1", other.port, None)
    other.answers.append([b"HTTP/1.1 502 Bad Gateway\r\n\r\nno ", b"server", b""])
    assert small.post("/", b"", (), 10.0, 10.0)[::2] == (502, b"no server")
    small.close()


@pytest.mark.slow
def test_an_answer_may_take_longer_than_a_connect(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    other.wait = 0.6
    for _ in range(2):
        other.answers.append([USUAL])
        status, headers, body = small.post("/path", b"body", (), 0.2, 30.0, 1)
        assert (status, headers["content-length"], headers["x-request-id"], body) == (200, "5", "a-1", b"hello")
    small.close()


@pytest.mark.slow
def test_a_connection_that_was_closed_while_it_was_idle_is_not_used(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    for expected in (1, 2):
        other.answers.append([USUAL, b""])
        assert small.post("/", b"", (), 10.0, 10.0)[2] == b"hello"
        assert other.connections == expected
        threading.Event().wait(1.1)
    small.close()


def test_a_head_is_that_of_its_path_and_headers(other: Answering) -> None:
    small = SmallRequests("127.0.0.1", other.port, None)
    for count in range(200):
        other.answers.append([USUAL])
        small.post(f"/{count % 3}", b"x" * count, (("a", f"{count // 2}"),), 10.0, 10.0)
    host = f"Host: 127.0.0.1:{other.port}"
    assert other.requests == [
        f"POST /{n % 3} HTTP/1.1\r\n{host}\r\na: {n // 2}\r\ncontent-length: {n}\r\n\r\n{'x' * n}".encode()
        for n in range(200)
    ]
    small.close()

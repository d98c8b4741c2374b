"""gzip both ways, if a client asks for it; what inflates without an end is refused, in bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import re
import socket
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_http.wire.compression import InflatedTooLargeError, Inflater, deflated, inflated
from twinkle_http.wire.decode import decode
from twinkle_http.wire.errors import WireFormatError
from twinkle_mesh import DeviceMesh
from twinkle_remote import get, on, session
from twinkle_remote.conformance.subjects.echo import Echo
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
MOST = 4_000_000
SERVER = """
    import os
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session
    from twinkle_remote.conformance.subjects.components import Counter
    from twinkle_remote.conformance.subjects.echo import Echo

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        hosts = [f"localhost:{port}" for port in sys.argv[2:]]
        options = {"port": 0, "token": "a token for tests", "max_body": int(sys.argv[1]), "hosts": hosts}
        with serve([Counter, Echo], **options) as server:
            print(f"{server.address}/{os.getpid()}", flush=True)
            sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[tuple[str, int]]:
    """Its host and port, and its process."""
    with serving(SERVER, str(MOST)) as address:
        place, _, pid = address.removeprefix("http://").partition("/")
        yield place, int(pid)


def ask(place: str, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    with contextlib.closing(http.client.HTTPConnection(place, timeout=60.0)) as connection:
        given = {"authorization": f"Bearer {TOKEN}", **{key.replace("_", "-"): text for key, text in headers.items()}}
        connection.request("POST", path, body, given)
        answer = connection.getresponse()
        return answer.status, {key.lower(): text for key, text in answer.getheaders()}, answer.read()


def bomb(megabytes: int, begin: bytes) -> bytes:
    """gzip of zeros behind a beginning: a thousandth of their bytes."""
    writer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = writer.compress(begin) + writer.flush(zlib.Z_FULL_FLUSH)
    block = writer.compress(bytes(1 << 20)) + writer.flush(zlib.Z_FULL_FLUSH)
    return head + block * megabytes


def highest_memory(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


ZIPPED = gzip.compress(b"{}", mtime=0)  # without the time: it is part of the names of tests
TREE = b"TWK\x01" + (MOST - 100).to_bytes(8, "little")  # the prefix of a message whose tree is as large as it may be


@pytest.mark.parametrize(
    ("path", "begin"), [("/v1/Counter", b'{"start": "'), ("/twinkle/1/call", TREE), ("/twinkle/1/updates", TREE)]
)
def test_a_bomb_is_refused_in_bounded_memory_and_time(server: tuple[str, int], path: str, begin: bytes) -> None:
    place, pid = server
    client = decode([ask(place, "/twinkle/1/open", b"")[2]], TYPES)["client"]
    data = bomb(3000, begin)
    assert len(data) < MOST
    before, began = highest_memory(pid), time.monotonic()
    status = 0
    with contextlib.suppress(ConnectionError):
        headers = {"content_encoding": "gzip", "twinkle_client": client, "twinkle_request": "1"}
        status, _, _ = ask(place, path, data, **headers)
    assert status in (0, 400, 413)
    assert highest_memory(pid) - before < 64 << 20 and time.monotonic() - began < 20.0
    assert ask(place, "/v1/Counter", b"{}")[0] == 201


def test_bodies_are_inflated_and_answers_deflated_if_asked(server: tuple[str, int]) -> None:
    place, _ = server
    body = json.dumps({"start": 5}).encode()
    status, _, text = ask(place, "/v1/Counter", gzip.compress(body), content_encoding="gzip")
    assert status == 201
    path = f"/v1/Counter/{json.loads(text)['id']}/current"
    assert json.loads(ask(place, path, gzip.compress(b"{}"), content_encoding="GZIP")[2]) == {"result": 5}
    with contextlib.closing(http.client.HTTPConnection(place, timeout=60.0)) as connection:
        for accepted, coding in (("gzip, br", "gzip"), ("br", None), ("", None)):
            headers = {"authorization": f"Bearer {TOKEN}", "accept-encoding": accepted}
            connection.request("GET", "/openapi.json", None, headers)
            answer = connection.getresponse()
            found = answer.read()
            assert answer.getheader("content-encoding") == coding
            assert b"/v1/Counter" in (gzip.decompress(found) if coding else found)
        connection.request("POST", path, b"{}", {"authorization": f"Bearer {TOKEN}", "accept-encoding": "gzip"})
        answer = connection.getresponse()
        assert answer.getheader("content-encoding") is None and json.loads(answer.read()) == {"result": 5}


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [
        (b"{}", "gzip", 400),
        (ZIPPED[:-4], "gzip", 400),
        (ZIPPED + b"{}", "gzip", 400),
        (ZIPPED * 2, "gzip", 400),
        (zlib.compress(b"{}"), "gzip", 400),
        (zlib.compress(b"{}"), "deflate", 415),
        (gzip.compress(ZIPPED, mtime=0), "gzip, gzip", 415),
        (b"{}", "br", 415),
        (b"{}", "identity", 201),
        (gzip.compress(b" " * (MOST + 1), mtime=0), "gzip", 413),
    ],
    ids=range(10),  # gzip has the time in it, and every process collects the same names
)
def test_other_codings_and_broken_ones_are_refused(
    server: tuple[str, int], body: bytes, coding: str, status: int
) -> None:
    assert ask(server[0], "/v1/Counter", body, content_encoding=coding)[0] == status


class Counting:
    """Passes bytes on, and counts them."""

    def __init__(self) -> None:
        self.far = ("", 0)
        self.passed = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                far = socket.create_connection(self.far)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passed += len(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()


def test_a_client_that_asks_for_it_sends_and_gets_fewer_bytes(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    proxy = Counting()
    array = np.repeat(np.arange(1000.0), 500)
    passed: dict[bool, int] = {}
    with serving(SERVER, str(64 << 20), str(proxy.port)) as address:
        url = urlsplit(address)
        proxy.far = (url.hostname or "", url.port or 0)
        for compress in (False, True):
            options: dict[str, Any] = {"address": f"http://localhost:{proxy.port}", "token": TOKEN}
            with session("http", compress=compress, **options):
                echo = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Echo)
                before = proxy.passed
                assert np.array_equal(get(echo.rows(array)), array)
                assert get(echo.rows(["a", "b"])) == ["a", "b"]
                passed[compress] = proxy.passed - before
    proxy.close()
    assert passed[False] > 2 * array.nbytes > 20 * passed[True], passed


CHUNKS = st.lists(st.binary(max_size=300) | st.integers(0, 3000).map(bytes), max_size=6)


@given(chunks=CHUNKS, cuts=st.lists(st.integers(1, 50), max_size=10))
def test_what_is_deflated_is_inflated_whatever_the_parts(chunks: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(chunks)
    data = b"".join(deflated(chunks))
    assert gzip.decompress(data) == whole
    parts = []
    for cut in cuts:
        parts.append(data[:cut])
        data = data[cut:]
    assert b"".join(inflated([*parts, data], len(whole))) == whole
    if whole:
        with pytest.raises(InflatedTooLargeError):
            list(inflated([*parts, data], len(whole) - 1))


@given(data=st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: gzip.compress(bytes(50))[:-20] + data))
def test_any_bytes_inflate_within_the_bound_or_are_refused(data: bytes) -> None:
    inflater = Inflater(1000)
    with contextlib.suppress(WireFormatError):
        for part in inflater.parts(data):
            assert len(part) <= 1000
        inflater.finish()
    assert inflater.size <= 1000 + (1 << 20)

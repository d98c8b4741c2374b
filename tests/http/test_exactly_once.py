"""A proxy that cuts connections, and one that counts bytes: effects happen once, and lazy chains move no payload."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.echo import Echo
from tests.http.subjects import TOKEN

from twinkle_mesh import DeviceMesh
from twinkle_remote import get, on, session, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Proxy:
    """Passes bytes on, counts them, and cuts a connection after some of them."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.cuts = 0
        self.passed = 0
        self.left: Callable[[], int | None] = lambda: None
        self.silent = 0  # connections to come whose answers do not arrive, and which stay open
        self.fell_silent = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                url = urlsplit(self.server)
                far = socket.create_connection((url.hostname or "", url.port or 0))
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._join, args=(near, far), daemon=True).start()

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        left = [self.left()]
        silent = self.silent > 0
        self.silent -= silent
        with near, far:
            back = threading.Thread(target=self._drop if silent else self._pass, args=(far, near, left), daemon=True)
            back.start()
            self._pass(near, far, left)
            back.join()

    def _drop(self, source: socket.socket, target: socket.socket, left: list[int | None]) -> None:
        self.fell_silent += 1
        with contextlib.suppress(OSError):
            while source.recv(65536):
                continue

    def _pass(self, source: socket.socket, target: socket.socket, left: list[int | None]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if left[0] is not None and len(data) >= left[0]:
                    target.sendall(data[: left[0]])
                    self.cuts += 1
                    break
                left[0] = None if left[0] is None else left[0] - len(data)
                self.passed += len(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(address: str) -> Iterator[Proxy]:
    made = Proxy(address)
    yield made
    made.close()


def options(proxy: Proxy) -> dict[str, Any]:
    return {"address": f"http://{proxy.place}", "token": TOKEN}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_call_takes_effect_once_over_connections_that_are_cut(proxy: Proxy, seed: int) -> None:
    draw = random.Random(seed)
    proxy.left = lambda: draw.randrange(1, 4000)
    with session("http", **options(proxy)):
        counter = on("two").create(Counter)
        for count in range(1, 41):
            assert counter.add() == count
        lazies = [submit(counter.add) for _ in range(20)]
        assert get(lazies) == list(range(41, 61))
        array = np.arange(20_000)
        echo = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Echo)
        proxy.left = lambda: draw.randrange(1, 600_000)
        assert np.array_equal(get(echo.rows(array)), array)
        large = np.arange(200_000)  # read past the parser of requests
        proxy.left = lambda: draw.randrange(1, 5_000_000)
        assert all(np.array_equal(get(echo.rows(large)), large) for _ in range(4))
        proxy.left = lambda: None
        assert counter.current == 60
    assert proxy.cuts >= 20


def test_a_call_whose_answer_never_comes_is_sent_again_and_runs_once(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinkle_http.client.connection._READ_SECONDS", 1.0)
    with session("http", **options(proxy)):
        counter = on("two").create(Counter)
        for count in range(1, 4):
            proxy.left = lambda: 0  # so that the next connection is a new one
            with contextlib.suppress(OSError):
                socket.create_connection((proxy.place.split(":")[0], int(proxy.place.split(":")[1]))).close()
            proxy.left, proxy.silent = (lambda: None), 1
            assert [get(submit(counter.add)) for _ in range(4)][-1] == 4 * count
    assert proxy.fell_silent >= 1


def test_a_lazy_chain_moves_no_payload_through_the_client(proxy: Proxy) -> None:
    with session("http", **options(proxy)):
        source = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Echo)
        target = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Echo)
        array = np.zeros(4_000_000, dtype=np.uint8)
        before = proxy.passed
        lazy = submit(source.rows, array)
        lazy.wait()
        sent = proxy.passed - before
        assert array.nbytes <= sent <= 1.01 * array.nbytes + 20_000
        before = proxy.passed
        assert get(source.type_of(array)) == "ndarray"  # of all four ranks
        assert proxy.passed - before <= 1.01 * array.nbytes + 20_000
        before = proxy.passed
        for _ in range(5):
            lazy = submit(target.rows, submit(source.rows, lazy))
        assert get(submit(target.sizes, lazy)) == [2_000_000, 2_000_000]
        assert proxy.passed - before < 40_000
        before = proxy.passed
        assert len(get(lazy)) == array.nbytes <= proxy.passed - before <= 1.01 * array.nbytes + 20_000

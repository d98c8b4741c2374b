"""Who does not read an answer is cut off, and costs little until then; who reads slowly gets all of it."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest
from tests.http.server.raw_client import Wire, message, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow  # the server takes seconds to end
BYTES = 64 << 20


class Asking:
    """Connections that ask for a large result.

    Attributes:
        wire: The client that holds it.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        with wire.connected() as connection:
            connection.sendall(wire.call(message(BYTES), 777))
            assert len(wire.value(connection)) == BYTES

    def asked(self) -> socket.socket:
        """A connection whose answer begins to come."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.settimeout(30.0)
        connection.connect(self.wire.place)
        connection.sendall(self.wire.reading("r777"))
        return connection


@pytest.fixture(scope="module")
def asking(
    serving: Callable[..., AbstractContextManager[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asking]:
    folder = tmp_path_factory.mktemp("server")
    with served(serving, folder, "np.full(arguments[0], 7, np.uint8)", "timeouts.ANSWER_SECONDS = 2.0") as wire:
        yield Asking(wire)


def test_who_does_not_read_is_cut_off_and_costs_little(asking: Asking) -> None:
    before = asking.wire.resident_bytes()
    silent = [asking.asked() for _ in range(5)]
    time.sleep(1.0)
    assert asking.wire.resident_bytes() - before < len(silent) * (16 << 20), "an answer is written as it is read"
    began = time.monotonic()
    time.sleep(4.0)
    for connection in silent:
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                got += len(part)
        assert got < BYTES and time.monotonic() - began < 15.0
        connection.close()


def test_who_reads_slowly_gets_all(asking: Asking) -> None:
    """At a pace that takes several times as long as one who does not read may take for a part of the answer."""
    with asking.asked() as connection:
        got = 0
        began = time.monotonic()
        while got < BYTES:
            part = connection.recv(64 * 1024)
            assert part, got
            got += len(part)
            if got < 6 << 20:  # of the first part that the server has written
                time.sleep(max(0.0, began + got / (1 << 20) - time.monotonic()))
    assert time.monotonic() - began > 5.0

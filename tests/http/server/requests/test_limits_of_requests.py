"""Options and requests that are out of bounds: ports, and heads."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function, serve, session

if TYPE_CHECKING:
    from collections.abc import Iterator


@remote_class()
class Served:
    @remote_function(dispatch="all", collect="first")
    def ping(self) -> str:
        return "here"


@pytest.fixture
def running() -> Iterator[None]:
    with session("threads", groups=[DeviceGroup("g", 1, "CPU")]):
        yield


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("port", [-1, 65536, 99999999, "8765", 1.0, True])
def test_a_port_is_in_its_range(port: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 65535"):
        serve([Served], port=port)


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(("headers", "status"), [([60_000], b"204"), ([109_000], b"400"), ([1_000] * 80, b"400")])
def test_a_head_is_bounded_however_it_arrives(headers: list[int], status: bytes) -> None:
    with serve([Served], port=0, token="t" * 40) as server:
        host, port = server.address.removeprefix("http://").split(":")
        head = f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
        head += "".join(f"X-{index}: {'x' * size}\r\n" for index, size in enumerate(headers))
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(head.encode() + b"\r\n")
            assert connection.recv(100).split()[1] == status

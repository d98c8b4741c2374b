"""The head and the nodes of a cluster as hosts and ports, and attempts to connect to them."""

from __future__ import annotations

import errno
import selectors
import socket
import sys
import time
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Address = tuple[str, int]
HEAD = "head"
SILENT = "does not answer"
_PROBES = 4  # of the system, one a second and none answered, until a quiet connection is broken
SILENT_SECONDS = 1 + _PROBES


def opened(address: Address) -> socket.socket:
    """A connection that is being made, without waiting for it; the system probes it while it is quiet.

    Args:
        address: Host and port.

    Raises:
        OSError: The host has no address, or there are no more sockets.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    made.connect_ex(where)
    return made


def problem_of(number: int | None) -> str:
    """An error of a connection in words."""
    if number in (errno.ECONNREFUSED, errno.ECONNRESET):
        return "refuses connections: its process ended"
    if number == errno.ETIMEDOUT:
        return SILENT
    return f"cannot be reached: {errno.errorcode.get(number or 0, number)}"


def connect_all(places: Mapping[str, Address], timeout: float) -> dict[str, str | None]:
    """Connect to all places at once; return the problem of each place, or None.

    Args:
        places: Host and port of each, by name.
        timeout: Seconds for all of them.
    """
    out: dict[str, str | None] = {}
    with selectors.DefaultSelector() as waiting:
        for name, address in places.items():
            try:
                waiting.register(opened(address), selectors.EVENT_WRITE, name)
            except OSError as error:
                out[name] = f"cannot be tried: {error}"
        until = time.monotonic() + timeout
        while waiting.get_map() and (events := waiting.select(max(0.0, until - time.monotonic()))):
            for key, _ in events:
                out[key.data] = _ended(waiting, key.fileobj)
        for key in list(waiting.get_map().values()):
            _ended(waiting, key.fileobj)
            out[key.data] = f"{SILENT} ({timeout:g} s)"
    return out


def _ended(waiting: selectors.BaseSelector, trying: object) -> str | None:
    assert isinstance(trying, socket.socket)
    waiting.unregister(trying)
    with trying:
        number = trying.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return None if number == 0 else problem_of(number)


def addresses_of(nodes: Iterable[str]) -> dict[str, Address]:
    """Return the host and port of the head and of some nodes of the cluster.

    Args:
        nodes: Ray's ids of them.
    """
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    wanted = set(nodes)
    found = {
        str(node["NodeID"]): (str(node["NodeManagerAddress"]), int(node["NodeManagerPort"]))
        for node in ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
        if node["NodeID"] in wanted
    }
    return {HEAD: (host.strip("[]"), int(port)), **found}

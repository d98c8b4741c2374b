"""Whether something listens at the address of a cluster that is to be joined: Ray itself may wait for minutes."""

from __future__ import annotations

import ipaddress
import socket
import time

import ray

from twinkle_remote.errors import BackendError

_SECONDS = 10.0  # a head that is just being started gets so long
_PAUSE_SECONDS = 0.2


def check_reachable(address: str, seconds: float = _SECONDS) -> None:
    """Connect to the address of a cluster, and close the connection.

    Args:
        address: host:port; anything else, as "auto", is left to Ray.
        seconds: How long to try.

    Raises:
        BackendError: Nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    host = host.strip("[]")
    asked = _own_address() if _is_loopback(host) else host  # as Ray does
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((asked, int(port)), max(0.1, until - time.monotonic())).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() + _PAUSE_SECONDS < until:
                time.sleep(_PAUSE_SECONDS)
                continue
            raise BackendError(f"no Ray cluster answers at {address}: {error}{_hint(asked, host, port)}") from error


def _own_address() -> str:
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's own gap


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hint(asked: str, host: str, port: str) -> str:
    if asked == host:
        return f"; check it with `ray status --address {host}:{port}`"
    return (
        f". Ray reads {host} as this host's own address, and nothing listens at {asked}:{port}. A cluster that "
        "`initialize` has started serves its own program alone: to join one, start it with `ray start --head`"
    )

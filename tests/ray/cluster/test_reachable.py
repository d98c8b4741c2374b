"""Joining an address where nothing listens is an error in time."""

from __future__ import annotations

import socket
import time

import pytest
import ray

from twinkle_ray.cluster.cluster import check_reachable
from twinkle_remote.errors import BackendError


def test_what_listens_everywhere_is_reached() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        check_reachable(f"127.0.0.1:{listener.getsockname()[1]}", 5.0)


def test_what_listens_on_loopback_alone_cannot_be_joined() -> None:
    own = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's own gap
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if own == "127.0.0.1":  # a host without a default route
            check_reachable(f"localhost:{port}", 5.0)
            return
        with pytest.raises(BackendError, match=own):
            check_reachable(f"localhost:{port}", 0.5)


def test_an_address_where_nothing_listens_is_an_error_in_time() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(BackendError, match=f"127.0.0.1:{port}"):
        check_reachable(f"127.0.0.1:{port}", 1.0)
    assert time.monotonic() - began < 60.0


@pytest.mark.parametrize("address", ["auto", "local"])
def test_other_addresses_are_left_to_ray(address: str) -> None:
    check_reachable(address, 0.1)

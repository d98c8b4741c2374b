"""Whether a node can be reached from here, while somebody waits for its data: the driver watches its own links."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import ray

from twinkle_ray.cluster.places import connect_all

if TYPE_CHECKING:
    from twinkle_ray.cluster.places import Address

_SECONDS = 8.0  # as long as the driver's monitor waits
_INTERVAL = 1.0
_ATTEMPT = 2.0  # seconds: the system tries a second time after one, where a packet is lost


class NodeProbe:
    """Tries to connect to a node, in a thread, until it is closed.

    Args:
        node: Ray's id of the node.

    Attributes:
        problem: Why the node cannot be reached; None as long as that is not certain.
    """

    def __init__(self, node: str) -> None:
        self.problem: str | None = None
        self._node = node
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="twinkle-probe", daemon=True).start()

    def close(self) -> None:
        """End the thread, without waiting for it."""
        self._closed.set()

    def _run(self) -> None:
        with suppress(ray.exceptions.RayError, OSError):  # the head does not answer: others report that
            self._try(_ports(self._node))

    def _try(self, places: dict[str, Address]) -> None:
        since = time.monotonic()
        while places and not self._closed.wait(_INTERVAL):
            problems = list(connect_all(places, _ATTEMPT).values())
            if None in problems:
                since, self.problem = time.monotonic(), None
            elif time.monotonic() - since >= _SECONDS:
                host, port = next(iter(places.values()))
                self.problem = (
                    f"its node at {host}:{port} cannot be reached from {socket.gethostname()}: it {problems[0]}"
                )


def _ports(node: str) -> dict[str, Address]:
    """Where the node's raylet and its object store listen; both must fail, for one may be behind a firewall."""
    for one in ray.nodes():  # type: ignore[no-untyped-call]  # Ray's own gap
        if one["NodeID"] == node:
            host = str(one["NodeManagerAddress"])
            return {name: (host, int(one[name])) for name in ("NodeManagerPort", "ObjectManagerPort")}
    return {}

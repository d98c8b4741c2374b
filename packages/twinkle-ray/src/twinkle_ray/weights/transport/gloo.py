"""A link over Gloo: a raw process group of this epoch, beside the user's default group and unknown to it."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import ProcessGroupGloo, Store
from torch._C._distributed_c10d import Work as TorchWork

from twinkle_ray.collective.guard import close_connections
from twinkle_ray.weights.rendezvous import JOIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.transport.protocol import Post


class GlooWork:
    """One message; keeps its buffer alive."""

    def __init__(self, work: TorchWork, post: Post, timeout: timedelta) -> None:
        self._work: TorchWork | None = work
        self._post = post
        self._timeout = timeout

    def wait(self) -> None:
        """Block until the message is through; `GlooLink.abort` and a closed connection end it."""
        work, self._work = self._work, None
        if work is not None:  # a second wait on Gloo's own work would not return
            work.wait(self._timeout)


class GlooLink:
    """Messages between `size` processes.

    Args:
        store: A store of this epoch alone.
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds after which joining, or a message, fails.
        host: Address of this process for its peers.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float, host: str) -> None:
        self._timeout = timedelta(seconds=timeout)
        self._rank, self._size = rank, size
        self._lock = Lock()
        self._aborted = False
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stub spells it Options
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        device = (
            ProcessGroupGloo.create_device(interface=interface.split(",")[0])
            if interface
            else ProcessGroupGloo.create_device(hostname=host)
        )
        options._devices = [device]
        options._threads = 2
        options._timeout = min(self._timeout, timedelta(seconds=JOIN_SECONDS))
        self._raw: Any = ProcessGroupGloo(store, rank, size, options)  # the stub lacks its send and recv

    def post(self, posts: Sequence[Post]) -> Sequence[GlooWork]:
        """Begin messages; tags keep them apart."""
        works: list[GlooWork] = []
        for post in posts:
            act = self._raw.recv if post.receive else self._raw.send
            works.append(GlooWork(act([post.buffer], post.peer, post.tag), post, self._timeout))
        return works

    def abort(self) -> None:
        """Close every connection."""
        with self._lock:
            if self._aborted or self._size == 1:
                return
            self._aborted = True
            close_connections(self._raw, self._rank, self._size)

    def close(self) -> None:
        """Leave the group."""
        self.abort()


def address_towards(host: str, port: int) -> str:
    """The address of this machine on the way to `host`."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])

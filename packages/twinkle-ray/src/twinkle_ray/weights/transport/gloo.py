"""A link over Gloo: a raw process group of this generation, beside the user's default group and unknown to it."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import ProcessGroupGloo, Store
from torch._C._distributed_c10d import Work as TorchWork

from twinkle_ray.collective.diagnostics import close_connections
from twinkle_ray.weights.rendezvous.session import JOIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.transport.protocol import LinkMessage


class _Wait:
    """One wait for one message, made on the link's own thread."""

    def __init__(self, work: TorchWork) -> None:
        self.work = work
        self.over = Event()
        self.error: RuntimeError | None = None


class _Waiter(Thread):
    """Waits for messages in the caller's place: no abort wakes a wait for a message that has come in part.

    A caller that is woken by an abort leaves this thread behind, which ends when Gloo's own timeout does. It holds the
    group until then: what a wait reads is the group's memory.

    Args:
        group: The link's process group.
        timeout: Of one wait.
    """

    def __init__(self, group: object, timeout: timedelta) -> None:
        super().__init__(name="twinkle-weights-gloo", daemon=True)
        self._group, self._timeout = group, timeout
        self._asked: SimpleQueue[_Wait | None] = SimpleQueue()
        self._waits: set[_Wait] = set()
        self._lock = Lock()
        self._aborted = False
        self.start()

    def wait(self, work: TorchWork) -> None:
        """Return when a message is through.

        Raises:
            RuntimeError: If it never will be, or the link is aborted.
        """
        asked = _Wait(work)
        with self._lock:
            if self._aborted:
                raise RuntimeError("the link was aborted")
            self._waits.add(asked)
        self._asked.put(asked)
        asked.over.wait()
        with self._lock:
            self._waits.discard(asked)
        if asked.error is not None:
            raise asked.error

    def abort(self) -> None:
        """Wake every caller with an error, and end the thread as soon as Gloo lets it go."""
        with self._lock:
            self._aborted = True
            waits = [*self._waits]
        for asked in waits:
            asked.error = asked.error or RuntimeError("the link was aborted")
            asked.over.set()
        self._asked.put(None)

    def run(self) -> None:
        """Wait for what is asked for, one after the other."""
        while (asked := self._asked.get()) is not None:
            try:
                asked.work.wait(self._timeout)
            except RuntimeError as error:
                asked.error = error
            asked.over.set()
            del asked


class GlooWork:
    """One message; keeps its buffer alive."""

    def __init__(self, work: TorchWork, post: LinkMessage, waiter: _Waiter) -> None:
        self._work: TorchWork | None = work
        self._post = post
        self._waiter = waiter

    def wait(self) -> None:
        """Block until the message is through; `GlooLink.abort` and a closed connection end it."""
        work, self._work = self._work, None
        if work is not None:  # a second wait on Gloo's own work would not return
            self._waiter.wait(work)


class GlooLink:
    """Messages between `size` processes.

    Args:
        store: A store of this generation alone.
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds after which joining, or a message, fails.
        host: Address of this process for its peers.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float, host: str) -> None:
        self._rank, self._size = rank, size
        self._lock = Lock()
        self._aborted = False
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stub spells it SyncOptions
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        device = (
            ProcessGroupGloo.create_device(interface=interface.split(",")[0])
            if interface
            else ProcessGroupGloo.create_device(hostname=host)
        )
        options._devices = [device]
        options._threads = 2
        options._timeout = timedelta(seconds=min(timeout, JOIN_SECONDS))
        self._raw: Any = ProcessGroupGloo(store, rank, size, options)  # the stub lacks its send and recv
        self._waiter = _Waiter(self._raw, timedelta(seconds=timeout))

    def post(self, posts: Sequence[LinkMessage]) -> Sequence[GlooWork]:
        """Begin messages; tags keep them apart."""
        works: list[GlooWork] = []
        for post in posts:
            act = self._raw.recv if post.receive else self._raw.send
            works.append(GlooWork(act([post.buffer], post.peer, post.tag), post, self._waiter))
        return works

    def abort(self) -> None:
        """Wake whoever waits here, and close every connection, which wakes the peers."""
        with self._lock:
            if self._aborted:
                return
            self._aborted = True
            self._waiter.abort()
            if self._size > 1:
                close_connections(self._raw, self._rank, self._size)

    def close(self) -> None:
        """Leave the group."""
        self.abort()


def address_towards(host: str, port: int) -> str:
    """The address of this machine on the way to `host`."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])

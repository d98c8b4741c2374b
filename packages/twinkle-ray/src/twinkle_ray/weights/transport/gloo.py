"""A link over Gloo: a raw process group of one session, independent of the user's default group."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import ProcessGroupGloo, Store
from torch.distributed.distributed_c10d import Work as TorchWork

from twinkle_ray.collective.diagnostics import close_connections
from twinkle_ray.torch_internals import gloo_options
from twinkle_ray.weights.rendezvous.session import JOIN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.transport.protocol import LinkMessage


class _GlooWait:
    """One wait for one message, on the link's own thread."""

    def __init__(self, work: TorchWork) -> None:
        self.work = work
        self.over = Event()
        self.error: RuntimeError | None = None


class _Waiter(Thread):
    """Waits for messages on behalf of the callers: an abort does not end Gloo's wait for a message that came in part.

    An abort wakes the callers; this thread ends at Gloo's own timeout. It keeps the group alive until then, because the
    wait reads the group's memory.

    Args:
        group: The link's process group.
        timeout: Of one wait.
    """

    def __init__(self, group: object, timeout: timedelta) -> None:
        super().__init__(name="twinkle-weights-gloo", daemon=True)
        self._group, self._timeout = group, timeout
        self._queue: SimpleQueue[_GlooWait | None] = SimpleQueue()
        self._waits: set[_GlooWait] = set()
        self._lock = Lock()
        self._aborted = False
        self.start()

    def wait(self, work: TorchWork) -> None:
        """Return when a message is through.

        Raises:
            RuntimeError: If the message fails, or the link is aborted.
        """
        one = _GlooWait(work)
        with self._lock:
            if self._aborted:
                raise RuntimeError("the link was aborted")
            self._waits.add(one)
        self._queue.put(one)
        one.over.wait()
        with self._lock:
            self._waits.discard(one)
        if one.error is not None:
            raise one.error

    def abort(self) -> None:
        """Wake every caller with an error, and end the thread after its present wait."""
        with self._lock:
            self._aborted = True
            waits = [*self._waits]
        for one in waits:
            one.error = one.error or RuntimeError("the link was aborted")
            one.over.set()
        self._queue.put(None)

    def run(self) -> None:
        """Wait for the callers' messages in order."""
        while (one := self._queue.get()) is not None:
            try:
                one.work.wait(self._timeout)
            except RuntimeError as error:
                one.error = error
            one.over.set()
            del one


class GlooWork:
    """One message; it keeps its buffer alive."""

    def __init__(self, work: TorchWork, message: LinkMessage, waiter: _Waiter) -> None:
        self._work: TorchWork | None = work
        self._message = message
        self._waiter = waiter

    def wait(self) -> None:
        """Block until the message is through; `GlooLink.abort` and a closed connection end the wait."""
        work, self._work = self._work, None
        if work is not None:  # Gloo's own work never returns from a second wait
            self._waiter.wait(work)


class GlooLink:
    """Messages between `size` processes.

    Args:
        store: A store that only this session uses.
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds after which joining, or a message, fails.
        host: Address of this process for its peers.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float, host: str) -> None:
        self._rank, self._size = rank, size
        self._lock = Lock()
        self._aborted = False
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        device = (
            ProcessGroupGloo.create_device(interface=interface.split(",")[0])
            if interface
            else ProcessGroupGloo.create_device(hostname=host)
        )
        options = gloo_options(device, 2, timedelta(seconds=min(timeout, JOIN_SECONDS)))
        self._raw: Any = ProcessGroupGloo(store, rank, size, options)  # the stub lacks its send and recv
        self._waiter = _Waiter(self._raw, timedelta(seconds=timeout))

    def post(self, messages: Sequence[LinkMessage]) -> Sequence[GlooWork]:
        """Start messages; tags keep them apart."""
        works: list[GlooWork] = []
        for message in messages:
            start = self._raw.recv if message.receive else self._raw.send
            work = start([message.buffer], message.peer, message.tag)
            works.append(GlooWork(work, message, self._waiter))
        return works

    def abort(self) -> None:
        """Wake the callers that wait here, and close every connection, which wakes the peers."""
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
    """This machine's address on the route to `host`."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])

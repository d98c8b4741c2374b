"""A link over NCCL: a raw process group of this generation, with a stream of its own beside the component's work."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch._C._distributed_c10d import Store

    from twinkle_ray.weights.transport.protocol import LinkMessage

_POLL_SECONDS = 0.0002
_cuda: Any = torch.cuda


class NcclWork:
    """One group of messages: done when the link's stream has passed it."""

    def __init__(self, event: Any, posts: Sequence[LinkMessage], aborted: Event, timeout: float) -> None:
        self._event, self._posts, self._aborted = event, posts, aborted
        self._deadline = time.monotonic() + timeout

    def wait(self) -> None:
        """Wait on the host, so that an abort and the deadline end it."""
        while not self._event.query():
            if self._aborted.is_set():
                raise RuntimeError("the link was aborted")
            if time.monotonic() > self._deadline:
                raise RuntimeError("messages over NCCL were not through in time")
            time.sleep(_POLL_SECONDS)


class NcclLink:
    """Messages between `size` processes, each with a GPU of its own.

    Messages of one `post` are one NCCL group: they progress together, on a stream that waits for the packing before it
    and holds up nothing else. NCCL has no tags: messages between two processes match in the order of their rounds.

    Args:
        store: A store of this generation alone.
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds after which a message fails.
        device: This process's GPU.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float, device: torch.device) -> None:
        torch.cuda.set_device(device)
        kind: Any = c10d.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = timedelta(seconds=timeout)
        with _without_watchdog():
            self._raw: Any = kind(store, rank, size, options)
        # All processes make the communicator together, also those without a message in the first round, or in any.
        self._raw.eager_connect_single_device(device)
        self._device, self._timeout = device, timeout
        self._stream = _cuda.Stream(device)
        self._aborted = Event()

    def post(self, posts: Sequence[LinkMessage]) -> Sequence[NcclWork]:
        """Begin messages as one group."""
        if not posts:
            return []
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._raw._start_coalescing()
            try:
                for post in posts:
                    act = self._raw.recv if post.receive else self._raw.send
                    act([post.buffer], post.peer, 0)
            finally:  # an open group would hold up what this thread does over NCCL elsewhere
                group = self._raw._end_coalescing()
            group.synchronize()  # on the stream; wait() would hold up the host
            event = _cuda.Event()
            event.record(self._stream)
        work = NcclWork(event, posts, self._aborted, self._timeout)
        return [work] * len(posts)

    def abort(self) -> None:
        """Abort the communicators; kernels under way end with an error."""
        if not self._aborted.is_set():
            self._aborted.set()
            with suppress(RuntimeError):
                self._raw.abort()

    def close(self) -> None:
        """Leave the group."""
        self.abort()


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Have torch make a group that it does not watch: its watchdog ends the process when a message fails.

    A group that is waited for on the host has none, and here `NcclWork.wait` is that wait.
    """
    name = "TORCH_NCCL_BLOCKING_WAIT"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

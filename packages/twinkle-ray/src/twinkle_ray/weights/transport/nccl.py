"""A link over NCCL: a raw process group of one session, on a CUDA stream of its own."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d

from twinkle_ray.python_internals import environment
from twinkle_ray.torch_internals import nccl_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.distributed_c10d import Store

    from twinkle_ray.weights.transport.protocol import LinkMessage

_POLL_SECONDS = 0.0002
_cuda: Any = torch.cuda


class NcclWork:
    """One group of messages; it is done when the link's stream has passed it."""

    def __init__(self, event: Any, messages: Sequence[LinkMessage], aborted: Event, timeout: float) -> None:
        self._event, self._messages, self._aborted = event, messages, aborted
        self._deadline = time.monotonic() + timeout

    def wait(self) -> None:
        """Wait on the host, so that an abort or the deadline ends the wait."""
        while not self._event.query():
            if self._aborted.is_set():
                raise RuntimeError("the link was aborted")
            if time.monotonic() > self._deadline:
                raise RuntimeError("messages over NCCL were not through in time")
            time.sleep(_POLL_SECONDS)
        if self._aborted.is_set():  # what was aborted is over, too, and has not arrived
            raise RuntimeError("the link was aborted")


class NcclLink:
    """Messages between `size` processes, each with a GPU of its own.

    Messages of one `post` are one NCCL group: they progress together, on a stream that waits for the packing and blocks
    no other stream. NCCL has no tags: messages between two processes match in the order of their rounds.

    Args:
        store: A store that only this session uses.
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds after which a message fails.
        device: This process's GPU.
    """

    def __init__(self, store: Store, rank: int, size: int, *, timeout: float, device: torch.device) -> None:
        torch.cuda.set_device(device)
        kind: Any = distributed_c10d.ProcessGroupNCCL  # not in torch's stubs
        options = nccl_options(timedelta(seconds=timeout))
        with _without_watchdog():
            self._raw: Any = kind(store, rank, size, options)
        # All processes make the communicator together, also one that has no message in the first round, or in any.
        self._raw.eager_connect_single_device(device)
        self._device, self._timeout = device, timeout
        self._stream = _cuda.Stream(device)
        self._aborted = Event()

    def post(self, messages: Sequence[LinkMessage]) -> Sequence[NcclWork]:
        """Start messages as one group."""
        if not messages:
            return []
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._raw._start_coalescing()
            try:
                for message in messages:
                    start = self._raw.recv if message.receive else self._raw.send
                    start([message.buffer], message.peer, 0)
            finally:  # an open group would block this thread's other work over NCCL
                group = self._raw._end_coalescing()
            group.synchronize()  # on the stream; wait() would block the host
            event = _cuda.Event()
            event.record(self._stream)
        work = NcclWork(event, messages, self._aborted, self._timeout)
        return [work] * len(messages)

    def abort(self) -> None:
        """Abort the communicators; kernels under way end with an error."""
        if not self._aborted.is_set():
            self._aborted.set()
            with suppress(RuntimeError):  # they had ended by an error of their own
                self._raw.abort()

    def close(self) -> None:
        """Leave the group."""
        self.abort()


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Have torch make a group without its watchdog, which ends the process when a message fails.

    torch starts no watchdog for a group whose waits block the host; `NcclWork.wait` is that wait here.
    """
    with environment({"TORCH_NCCL_BLOCKING_WAIT": "1"}):
        yield

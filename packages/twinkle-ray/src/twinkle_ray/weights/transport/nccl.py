"""Messages between GPUs over NCCL: one group of all processes of a sync, over torch's TCPStore.

NCCL waits for a peer on the device. So the host waits for an event with a limit, and a process that fails destroys its
communicators, which ends the waits of its peers.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from twinkle_ray.ray_internals import environment
from twinkle_ray.torch_internals import nccl_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_ray.weights.transport.messages import Message

_POLL_SECONDS = 0.0002
_cuda: Any = torch.cuda
_distributed: Any = distributed  # torch's stubs lack its stores


class Meeting(NamedTuple):
    """Where the processes of a sync make their group.

    Attributes:
        host: Address of the process that serves the store.
        port: Its port.
        number: Of this group among those of the sync; another one is made after a failure, and for another plan.
        size: Number of processes.
        timeout: Seconds for joining, and for each message.
    """

    host: str
    port: int
    number: int
    size: int
    timeout: float


def serve() -> tuple[Any, str, int]:
    """A store for the group's meeting, with its address; it ends with the returned object."""
    host = socket.gethostbyname(socket.gethostname())
    with suppress(ImportError, RuntimeError):  # no Ray, or none that this process has joined
        import ray

        if ray.is_initialized():
            host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's own gap
    store = _distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    return store, host, store.port


class NcclGroup:
    """The processes of one sync, each with a GPU of its own.

    Messages of one exchange are one NCCL group: they progress together, on a stream that waits for the packing and
    blocks no other stream. NCCL has no tags: messages between two processes match in the order of the exchange.

    Args:
        meeting: Where the processes meet.
        rank: Of this process.
        device: Its GPU.
    """

    def __init__(self, meeting: Meeting, rank: int, device: torch.device) -> None:
        torch.cuda.set_device(device)
        seconds = timedelta(seconds=meeting.timeout)
        base = _distributed.TCPStore(
            meeting.host, meeting.port, is_master=False, wait_for_workers=False, timeout=seconds
        )
        store = distributed_c10d.PrefixStore(f"twinkle/{meeting.number}", base)
        kind: Any = distributed_c10d.ProcessGroupNCCL  # not in torch's stubs
        with _without_watchdog():
            self._raw: Any = kind(store, rank, meeting.size, nccl_options(seconds))
        # All processes make the communicator together, also one that has no message in the first exchange, or in any.
        self._raw.eager_connect_single_device(device)
        self._device, self._timeout = device, meeting.timeout
        self._stream = _cuda.Stream(device)

    def run(self, messages: Sequence[Message]) -> None:
        """Send and receive; the host waits, with the timeout for all of them."""
        if not messages:
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self._raw._start_coalescing()
            try:
                for message in messages:
                    start = self._raw.recv if message.receives else self._raw.send
                    start([message.tensor], message.peer, 0)
            finally:  # an open group would block this thread's other work over NCCL
                group = self._raw._end_coalescing()
            group.synchronize()  # on the stream; wait() would block the host
            event = _cuda.Event()
            event.record(self._stream)
        until = time.monotonic() + self._timeout
        while not event.query():
            if time.monotonic() > until:
                self.abort()
                raise RuntimeError(f"messages over NCCL were not through within {self._timeout:g} s")
            time.sleep(_POLL_SECONDS)

    def abort(self) -> None:
        """Abort the communicators; kernels under way end with an error."""
        with suppress(RuntimeError):  # they had ended by an error of their own
            self._raw.abort()


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Have torch make a group without its watchdog, which ends the process when a message fails.

    torch starts no watchdog for a group whose waits block the host; `NcclGroup.run` is that wait here.
    """
    with environment({"TORCH_NCCL_BLOCKING_WAIT": "1"}):
        yield

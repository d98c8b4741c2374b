"""Messages between the processes that torchrun has started, over their default group.

Where the program has not made a default group, CPU tensors travel over a Gloo group of the sync's own, which meets at
the launcher's store: the program may still make its default group.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from twinkle_ray.torch_internals import gloo_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.transport.messages import Message

_distributed: Any = dist  # torch's stubs lack its stores
_numbers = count(1)  # the processes of a program make their syncs in the same order


class LaunchedGroup:
    """The processes of a launched program.

    Args:
        rank: Of this process.
        size: Number of processes.
        timeout: Seconds for each message.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        self._timeout = timedelta(seconds=timeout)
        self._own: Any = None
        if not dist.is_initialized():
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            base = _distributed.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=self._timeout)
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = _distributed.PrefixStore(f"twinkle-weights/{attempt}/{next(_numbers)}", base)
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((socket.gethostbyname(address), port))
                device = ProcessGroupGloo.create_device(hostname=str(probe.getsockname()[0]))
            self._own = ProcessGroupGloo(store, rank, size, gloo_options(device, 2, self._timeout))

    def run(self, messages: Sequence[Message]) -> None:
        """Send and receive; waits for each message with the timeout."""
        if not messages:
            return
        if self._own is None:
            operations = [
                dist.P2POp(dist.irecv if one.receives else dist.isend, one.tensor, one.peer, tag=one.tag)
                for one in messages
            ]
            works: list[Any] = dist.batch_isend_irecv(operations)
        else:
            works = [
                (self._own.recv if one.receives else self._own.send)([one.tensor], one.peer, one.tag)
                for one in messages
            ]
        for work in works:
            work.wait(self._timeout)

    def abort(self) -> None:
        """Leave the sync's own group; the program's default group is its own."""
        self._own = None

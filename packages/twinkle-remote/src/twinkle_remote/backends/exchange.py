"""How the processes of one launched program tell each other the outcomes of a call: through torch's store."""

from __future__ import annotations

import importlib
import os
import pickle
from datetime import timedelta
from typing import Any

from twinkle_remote.errors import CallTimeoutError


class Exchange:
    """All-gather of picklable values over the store that the launcher's MASTER_ADDR and MASTER_PORT name.

    The store is shared with torch.distributed's own rendezvous and is no process group, so that components still have
    the default group to themselves.

    Args:
        rank: Rank of this process.
        size: Number of processes.
        timeout: Seconds to wait for the others where a call has no deadline of its own.
    """

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        distributed: Any = importlib.import_module("torch.distributed")
        for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"):
            if name not in os.environ:
                raise RuntimeError(f"WORLD_SIZE={size} is set, but {name} is not: start the program with torchrun")
        agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = distributed.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            size,
            rank == 0 and not agent_hosts,
            timedelta(seconds=timeout),
            multi_tenant=True,
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = distributed.PrefixStore(f"twinkle/{attempt}", store)
        self._rank, self._size, self._timeout = rank, size, timeout
        self._round = 0

    def all_gather(self, value: object, timeout: float | None) -> dict[int, Any]:
        """Every process's value by rank; each process calls this for the same calls in the same order.

        Raises:
            CallTimeoutError: A process did not tell in time.
        """
        seconds = self._timeout if timeout is None else timeout
        self._round += 1
        self._store.set(f"{self._round}/{self._rank}", pickle.dumps(value))
        out: dict[int, Any] = {}
        for rank in range(self._size):
            key = f"{self._round}/{rank}"
            try:
                self._store.wait([key], timedelta(seconds=max(seconds, 0.001)))
            except RuntimeError as error:
                rest = [other for other in range(self._size) if other not in out]
                raise CallTimeoutError(
                    f"rank {self._rank} waited {seconds:g} s for rank {rank} of {self._size}: the processes of a "
                    "program make the same calls in the same order",
                    sorted(out),
                    rest,
                ) from error
            out[rank] = pickle.loads(self._store.get(key))
        if self._round > 1:
            self._store.delete_key(f"{self._round - 1}/{self._rank}")
        return out

    def close(self) -> None:
        """Let go of the store; the process that hosts it leaves last."""
        self._store.add("left", 1)
        self._store = None

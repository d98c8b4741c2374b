"""One session of a sync's processes: its part of the store, with an abort key and signs of life."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.distributed.distributed_c10d import PrefixStore

from twinkle_ray.weights.errors import PeerFailedError
from twinkle_ray.weights.rendezvous.store import StoreClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_ray.weights.rendezvous.store import StoreAddress

POLL_SECONDS = 0.2
JOIN_SECONDS = 60.0
_ELSEWHERE = "192.0.2.1"  # an address that is kept for examples


@dataclass(frozen=True, slots=True)
class Session:
    """One generation of a sync's process group.

    Attributes:
        generation: Number of the session in its sync; a failure ends a session.
        at: Address of the store.
        size: Number of processes.
        kind: "gloo" or "nccl".
        links: Whether any bucket travels over a link.
        timeout: Longest wait for a peer, in seconds.
    """

    generation: int
    at: StoreAddress
    size: int
    kind: str
    links: bool
    timeout: float


class Phase(NamedTuple):
    """A step of one attempt to sync, as the heartbeats name it."""

    attempt: int
    step: str


class SessionStore:
    """One session's part of the store, over its own connection.

    Args:
        session: The session.

    Raises:
        OSError: If the store cannot be reached.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.client = StoreClient(session.at)
        self._prefix = str(session.generation)

    def group_store(self) -> PrefixStore:
        """The store for torch's process group; it uses this object's connection."""
        return PrefixStore(f"{self._prefix}/group", self.client)

    def abort(self, reason: str) -> None:
        """End the session for every process; the first reason stays. Does nothing if the store has ended."""
        with suppress(RuntimeError):  # the store has ended, and the session with it
            self.client.compare_set(self._key("abort"), "", reason)

    def aborted(self, seconds: float = 0.0) -> str | None:
        """The reason of an abort, waited for up to `seconds`; None without an abort."""
        key = self._key("abort")
        return self.client.get(key).decode() if self.client.arrives([key], seconds) else None

    def beat(self, rank: int, phase: Phase, sign: str) -> None:
        """Write a sign of life of a process in a phase; the sign "done" ends the phase."""
        self.client.put(self._key(f"beat/{phase.step}/{rank}"), f"{phase.attempt} {sign}")

    def beats(self, phase: Phase, ranks: Iterable[int]) -> dict[int, str]:
        """The last sign of life in this step of each of these processes; those without one are left out."""
        keys = {rank: self._key(f"beat/{phase.step}/{rank}") for rank in ranks}
        return {rank: self.client.get(key).decode() for rank, key in keys.items() if self.client.check([key])}

    def arrive(self, rank: int) -> None:
        """Wait until every process has arrived, before they build the process group.

        Raises:
            PeerFailedError: If the session is aborted, or a process does not arrive within the session's timeout.
        """
        self.client.set(self._key(f"here/{rank}"), "1")
        deadline = time.monotonic() + min(JOIN_SECONDS, self.session.timeout)
        keys = [self._key(f"here/{other}") for other in range(self.session.size)]
        while not self.client.arrives(keys, POLL_SECONDS):
            reason = self.aborted()
            if reason is not None:
                raise PeerFailedError(reason)
            if time.monotonic() > deadline:
                absent = [other for other, key in enumerate(keys) if not self.client.check([key])]
                raise PeerFailedError(f"process(es) {absent} of {self.session.size} did not join the group in time")

    def close(self) -> None:
        """Leave the store."""
        self.client.close()

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def own_address() -> str:
    """This host's address for the other hosts; the loopback address if there is none.

    It is the one that Ray's nodes use, or the one on the way to MASTER_ADDR, or to the default route.
    """
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.util.get_node_ip_address())
    for peer in (os.environ.get("MASTER_ADDR"), _ELSEWHERE):
        # No way leads there, or this host knows no such name.
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer or _ELSEWHERE, 9))  # sends nothing
            address = str(probe.getsockname()[0])
            if not address.startswith("127."):
                return address
    return "127.0.0.1"

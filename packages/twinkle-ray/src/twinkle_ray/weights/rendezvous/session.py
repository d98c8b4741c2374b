"""Where the processes of one generation meet: their part of the controller's store, an abort key, and signs of life."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch._C._distributed_c10d import PrefixStore

from twinkle_ray.weights.errors import PeerFailedError
from twinkle_ray.weights.rendezvous.store import StoreClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_ray.weights.rendezvous.store import StoreAddress

POLL_SECONDS = 0.2
JOIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Session:
    """One generation of a sync's process group, as its members are told of it.

    Attributes:
        generation: Counts the groups of a sync; a failure ends one.
        at: Where the store is.
        size: Number of processes.
        kind: "gloo" or "nccl".
        links: Whether any bucket travels over a link.
        timeout: Seconds after which waiting for a peer ends.
    """

    generation: int
    at: StoreAddress
    size: int
    kind: str
    links: bool
    timeout: float


class Phase(NamedTuple):
    """A step of one attempt to sync, as signs of life name it."""

    attempt: int
    step: str


class SessionStore:
    """One generation's part of the store, over a connection of its own.

    Args:
        session: The generation.

    Raises:
        OSError: If the store cannot be reached.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.client = StoreClient(session.at)
        self._prefix = str(session.generation)

    def group_store(self) -> PrefixStore:
        """Where the process group meets; needs this board to stay alive."""
        return PrefixStore(f"{self._prefix}/group", self.client)

    def abort(self, reason: str) -> None:
        """End the generation for everybody; the first reason stays. Without its store it has ended already."""
        with suppress(RuntimeError):
            self.client.compare_set(self._key("abort"), "", reason)

    def aborted(self, seconds: float = 0.0) -> str | None:
        """Why the generation has ended, waited for; None while it has not."""
        key = self._key("abort")
        return self.client.get(key).decode() if self.client.arrives([key], seconds) else None

    def beat(self, rank: int, phase: Phase, sign: str) -> None:
        """Show that a process is alive in a phase; the sign "done" ends it."""
        self.client.set(self._key(f"beat/{phase.step}/{rank}"), f"{phase.attempt} {sign}")

    def beats(self, phase: Phase, ranks: Iterable[int]) -> dict[int, str]:
        """The last sign of life of each of these processes that has given one in this step."""
        keys = {rank: self._key(f"beat/{phase.step}/{rank}") for rank in ranks}
        return {rank: self.client.get(key).decode() for rank, key in keys.items() if self.client.check([key])}

    def arrive(self, rank: int) -> None:
        """Wait until every process is here, so that building the group meets everybody.

        Raises:
            PeerFailedError: If the generation is aborted, or somebody does not come within the session's timeout.
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
    """This machine's address on its default route; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])

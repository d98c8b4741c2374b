"""Where the processes of one epoch meet: a store held by the controller, an abort key, and heartbeats."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from twinkle_ray.weights.errors import PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_SECONDS = 0.2
JOIN_SECONDS = 60.0
_STORE_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Session:
    """One epoch of a sync's process group, as its members are told of it.

    Attributes:
        sync: Id of the sync.
        epoch: Counts the groups of this sync; a failure ends one.
        host: Where the store listens.
        port: Its port.
        size: Number of processes.
        kind: "gloo" or "nccl".
        links: Whether any bucket travels over a link.
        timeout: Seconds after which waiting for a peer ends.
    """

    sync: str
    epoch: int
    host: str
    port: int
    size: int
    kind: str
    links: bool
    timeout: float

    @property
    def prefix(self) -> str:
        """Where this epoch's keys are in the store."""
        return f"{self.sync}/{self.epoch}"


class Board:
    """One epoch's part of the store, as one process sees it."""

    def __init__(self, store: Store, session: Session) -> None:
        self.session = session
        self._base = store
        self._store = PrefixStore(session.prefix, store)

    @staticmethod
    def connect(session: Session) -> Board:
        """Reach the controller's store.

        Raises:
            torch.distributed.DistNetworkError: If it cannot be reached.
        """
        store = TCPStore(session.host, session.port, is_master=False, timeout=_STORE_TIMEOUT, wait_for_workers=False)
        return Board(store, session)

    def clone(self) -> Board:
        """The same part over a connection of its own: a store's calls wait for each other."""
        return Board(_cloned(self._base), self.session)

    def group_store(self) -> Store:
        """Where the process group meets."""
        return PrefixStore("group", self._store)

    def abort(self, reason: str) -> None:
        """End the epoch for everybody; the first reason stays."""
        self._store.compare_set("abort", "", reason)

    def aborted(self) -> str | None:
        """Why the epoch has ended; None while it has not."""
        if not self._store.check(["abort"]):
            return None
        return bytes(self._store.get("abort")).decode()

    def beat(self, rank: int, phase: str, sign: str) -> None:
        """Show that a process is alive in a phase; the sign "done" ends it."""
        self._store.set(f"beat/{rank}", f"{phase} {sign}")

    def beats(self) -> dict[int, str]:
        """The last sign of life of each process that has given one."""
        keys = [f"beat/{rank}" for rank in range(self.session.size)]
        return {rank: bytes(self._store.get(key)).decode() for rank, key in enumerate(keys) if self._store.check([key])}

    def arrive(self, rank: int) -> None:
        """Wait until every process is here, so that building the group meets everybody.

        Raises:
            PeerFailedError: If the epoch is aborted, or somebody does not come within the session's timeout.
        """
        self._store.set(f"here/{rank}", "1")
        deadline = time.monotonic() + min(JOIN_SECONDS, self.session.timeout)
        keys = [f"here/{other}" for other in range(self.session.size)]
        while not self._store.check(keys):
            reason = self.aborted()
            if reason is not None:
                raise PeerFailedError(reason)
            if time.monotonic() > deadline:
                absent = [other for other, key in enumerate(keys) if not self._store.check([key])]
                raise PeerFailedError(f"process(es) {absent} of {self.session.size} did not join the group in time")
            time.sleep(0.005)


class Watch:
    """A thread that shows this process alive, and learns within 0.2 s that the epoch was aborted.

    Args:
        board: A clone that nobody else uses.
        rank: Of this process.
        phase: What it is at.
        on_abort: Called once, from the thread.
    """

    def __init__(self, board: Board, rank: int, phase: str, on_abort: Callable[[], None]) -> None:
        self.reason: str | None = None
        self._board, self._rank, self._phase, self._on_abort = board, rank, phase, on_abort
        self._stop = Event()
        self._thread = Thread(target=self._run, name="twinkle-weights-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        count = 0
        try:
            while self.reason is None:
                self._board.beat(self._rank, self._phase, str(count))
                self.reason = self._board.aborted()
                if self.reason is None and self._stop.wait(POLL_SECONDS):
                    self._board.beat(self._rank, self._phase, "done")
                    return
                count += 1
        except RuntimeError as error:
            self.reason = f"the controller's store is gone ({error})"
        self._on_abort()


def _cloned(store: Store) -> Store:
    """A connection of its own to the same store."""
    clone: Callable[[], Store] = store.clone  # type: ignore[attr-defined]  # the stub lacks it
    return clone()


class Hub:
    """The controller's end: the store itself, and the epochs in it.

    Args:
        host: Address to listen on: loopback where every process is on this host.
    """

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
        )
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._store = TCPStore(
            host,
            self.port,
            is_master=True,
            timeout=_STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=self._listener.fileno(),
        )
        self._listener.detach()

    def board(self, session: Session) -> Board:
        """An epoch's part, over a connection of its own."""
        return Board(_cloned(self._store), session)


class Monitor:
    """Tells the controller which processes are silent in a phase.

    Args:
        board: The epoch's part of the store.
        phase: Its name, as the processes give it.
        silence: Seconds without a sign of life that are too many.
    """

    def __init__(self, board: Board, phase: str, silence: float) -> None:
        self._board, self._phase, self._silence = board, phase, silence
        self._looked = time.monotonic()
        self._seen = dict.fromkeys(range(board.session.size), ("", self._looked))

    def silent(self) -> list[int]:
        """Processes that have been silent for too long; asks the store every 0.2 s at most."""
        now = time.monotonic()
        if now - self._looked < POLL_SECONDS:
            return []
        self._looked = now
        beats = self._board.beats()
        for rank, (last, _) in list(self._seen.items()):
            value = beats.get(rank, "")
            if value != last and value.startswith(f"{self._phase} "):
                self._seen[rank] = (value, now)
        return [
            rank
            for rank, (value, since) in self._seen.items()
            if now - since > self._silence and value != f"{self._phase} done"
        ]


def own_address() -> str:
    """This machine's address on its default route; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])

"""The clients of a server: what each of them holds, within the limits of its token, and its lease.

A request runs once: its answer is kept by its number until the client has acknowledged it. The end of a call is the
answer to its request, or an update, which is kept until the client has read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING

from twinkle_http.gate import RefusedError, unknown
from twinkle_http.messages import CallUpdate, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_http.server.ends import ServedCall
    from twinkle_remote.protocol import SessionTool

_log = logging.getLogger("twinkle.http")
MOST_CLIENTS = 256  # of one token
MOST_UNREAD = 10_000  # answers and updates of one client
LIMITS: dict[str, tuple[int, str]] = {
    "components": (1000, "components: release one"),
    "calls": (4096, "calls in flight: wait for results"),
    "results": (200_000, "results: drop lazy results that are no longer used"),
    "tools": (1000, "tools: close one"),
}
"""What one token may hold at a time, over all its clients, and what to do beyond it."""


class Turn:
    """A thread that does work in the order in which it was given; it starts with the first."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def put(self, work: Callable[[], object]) -> None:
        """Do some work after what was given before; what it raises is logged."""
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        self._work.put(work)

    def end(self) -> None:
        """End the thread after the work that it was given."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # the thread does what comes behind it all the same
                _log.exception("a thread of the server failed")
            del work


class TenantUse:
    """The holdings of one token, within `LIMITS`."""

    def __init__(self) -> None:
        self._held = dict.fromkeys(LIMITS, 0)
        self._lock = threading.Lock()

    def add(self, what: str, count: int = 1) -> None:
        """Count what is held now; a count below 0 counts what is not held any more."""
        with self._lock:
            self._held[what] += count

    def check(self, *names: str) -> None:
        """Raise RefusedError where there is no room for one more of each; the message states the limit."""
        for name in names:
            most, text = LIMITS[name]
            if self._held[name] >= most:
                raise RefusedError(429, f"this token may have {most} {text}", "TooMany")


class RemoteClient:
    """The holdings of one client; what its tenant holds is `use`.

    Attributes:
        results: Its results, by name; `keep` and `drop` change them.
        tools: The tools that it has made, by the names that it gave them.
        components: Ids of the components that it built, (group, instance) as it names them.
        turn: The thread that makes its calls, in the order of their arrival.
        is_gone: It has ended, or its lease has.
        busy: Requests of it that are being answered.
        answers: The answer to each request by its number, from `floor` on; the event loop sets them.
        floor: Requests below this number were answered, and the client has the answers.
    """

    def __init__(self, name: str, tenant: str, use: TenantUse, loop: asyncio.AbstractEventLoop) -> None:
        self.name, self.tenant, self.use = name, tenant, use
        self.results: dict[str, ServedCall] = {}
        self.tools: dict[str, SessionTool] = {}
        self.components: set[tuple[str, str]] = set()
        self.turn = Turn(f"twinkle-client-{name[-6:]}")
        self.is_gone = False
        self.busy, self.seen = 0, time.monotonic()
        self.floor = 0
        self.answers: dict[int, asyncio.Future[bytes]] = {}
        self._loop = loop
        self._updates: deque[tuple[int, CallUpdate]] = deque()
        self._count = 0
        self._arrived = asyncio.Event()

    def publish(self, update: CallUpdate) -> None:
        """Give a request its answer, or keep the update if it has one; from any thread."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self.take, update)

    def take(self, update: CallUpdate) -> None:
        """Do as `publish` does, on the event loop."""
        answer = self.answers.get(update.number)
        if answer is not None and not answer.done():
            answer.set_result(packed(update))
        elif not update.accepted:
            self._count += 1
            self._updates.append((self._count, update))
            self._arrived.set()

    def call_later(self, seconds: float, work: Callable[[], object]) -> None:
        """Do something on the event loop after some seconds; from any thread."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, work)

    async def updates(self, after: int, seconds: float) -> Sequence[tuple[int, CallUpdate]]:
        """The updates after a number that the client has read; waits for some."""
        while self._updates and self._updates[0][0] <= after:
            self._updates.popleft()
        if not self._updates:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):  # the client asks again
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        return tuple(self._updates)

    def unread(self) -> bool:
        """Whether it may not have read all updates."""
        return bool(self._updates)

    def acknowledge(self, floor: int, dropped: Iterable[str]) -> None:
        """Forget the answers that the client has, and the results that it has dropped; on the event loop."""
        if floor > self.floor:
            self.floor = floor
            for number in [number for number in self.answers if number < floor]:
                del self.answers[number]
        self.drop(dropped)

    def check_backlog(self) -> None:
        """Raise RefusedError where the client is known to have read too few answers and updates."""
        if len(self.answers) + len(self._updates) >= MOST_UNREAD:
            raise RefusedError(429, "too many answers are not read: ask for updates", "TooMany")

    def keep(self, result: ServedCall) -> None:
        """Keep a result until the client drops it."""
        self.results[result.name] = result
        self.use.add("results")

    def drop(self, names: Iterable[str]) -> None:
        """Forget results that the client has dropped."""
        for name in names:
            if self.results.pop(name, None) is not None:
                self.use.add("results", -1)

    def result(self, name: object) -> ServedCall:
        """A result by name; raises RefusedError where this client has none of it."""
        found = self.results.get(str(name))
        if found is None:
            raise unknown("result", str(name))
        return found


class Clients:
    """The clients of a server; one that sends nothing for `lease` seconds is gone."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self._server = secrets.token_hex(6)  # of this start of the server
        self._uses: dict[str, TenantUse] = {}
        self._clients: dict[str, RemoteClient] = {}

    def use(self, tenant: str) -> TenantUse:
        """The holdings of a tenant."""
        return self._uses.setdefault(tenant, TenantUse())

    def open(self, tenant: str) -> RemoteClient:
        """A new client; raises RefusedError where the tenant has many already."""
        if sum(client.tenant == tenant for client in self._clients.values()) >= MOST_CLIENTS:
            raise RefusedError(429, f"a token has at most {MOST_CLIENTS} clients", "TooMany")
        name = f"{self._server}-{secrets.token_hex(8)}"
        client = self._clients[name] = RemoteClient(name, tenant, self.use(tenant), asyncio.get_running_loop())
        return client

    def find(self, name: str, tenant: str) -> RemoteClient:
        """A client by id; raises RefusedError where the server was restarted, or the lease has ended."""
        client = self._clients.get(name)
        if client is not None and client.tenant == tenant:
            client.seen = time.monotonic()
            return client
        if name.partition("-")[0] != self._server:
            raise RefusedError(410, "the server was restarted: everything that this client held is gone", "Restarted")
        raise RefusedError(
            410, f"the lease of this client has ended: it gave no sign of life for {self.lease:g} s", "LeaseEnded"
        )

    def forget(self, client: RemoteClient) -> None:
        """Remove a client."""
        self._clients.pop(client.name, None)
        client.is_gone = True

    def gone(self) -> Sequence[RemoteClient]:
        """The clients whose lease has ended."""
        before = time.monotonic() - self.lease
        return [client for client in self._clients.values() if not client.busy and client.seen < before]

    def all(self) -> Sequence[RemoteClient]:
        """All clients."""
        return tuple(self._clients.values())

"""The clients of a server: what each of them holds, within the limits of its token, and its lease.

All of it belongs to the server's event loop. A request runs once: its answer is kept by its number until the client has
acknowledged it. The end of a call is the answer to its request, or an update, which is kept until the client has read
it. A component that was built in JSON is a client of its own, by the component's id.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from twinkle_http.gate import RefusedError, unknown
from twinkle_http.messages import CallUpdate, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twinkle_remote.backends.support import Lazy
    from twinkle_remote.protocol import SessionTool

MOST_UNREAD = 10_000  # answers and updates of one client
LIMITS: dict[str, tuple[int, str]] = {
    "clients": (1000, "clients: close one"),
    "components": (1000, "components: release one"),
    "calls": (4096, "calls in flight: wait for results"),
    "results": (200_000, "results: drop lazy results that are no longer used"),
    "tools": (1000, "tools: close one"),
}
"""What one token may hold at a time, over all its clients, and what to do beyond it."""


class RemoteClient:
    """The holdings of one client.

    Attributes:
        results: Its results, by name.
        tools: The tools that it has made, by the names that it gave them.
        components: Ids of the components that it built, (group, instance) as it names them.
        turn: Held by the call that begins: calls begin in the order of their arrival.
        running: Its calls that have not ended.
        is_gone: It has ended, or its lease has.
        answers: The answer to each request by its number, from `floor` on.
        floor: Requests below this number were answered, and the client has the answers.
    """

    def __init__(self, name: str, tenant: str, lease: float) -> None:
        self.name, self.tenant = name, tenant
        self.results: dict[str, Lazy[Any]] = {}
        self.tools: dict[str, SessionTool] = {}
        self.components: set[tuple[str, str]] = set()
        self.turn = asyncio.Lock()
        self.running: set[asyncio.Task[None]] = set()
        self.is_gone = False
        self.floor = 0
        self.answers: dict[int, asyncio.Future[bytes]] = {}
        self._lease, self._busy, self._seen = lease, 0, time.monotonic()
        self._updates: deque[tuple[int, CallUpdate]] = deque()
        self._count = 0
        self._arrived = asyncio.Event()

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Keep its lease while a request of it is answered, and from then on."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._seen = time.monotonic()

    def lease_ended(self) -> bool:
        """Whether it has not asked for so long that it is gone."""
        return not self._busy and self._seen < time.monotonic() - self._lease

    def take(self, update: CallUpdate) -> None:
        """Give a request its answer, or keep the update if it has one."""
        answer = self.answers.get(update.number)
        if answer is not None and not answer.done():
            answer.set_result(packed(update))
        elif not update.accepted:
            self._count += 1
            self._updates.append((self._count, update))
            self._arrived.set()

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
        """Forget the answers that the client has, and the results that it has dropped."""
        if floor > self.floor:
            self.floor = floor
            for number in [number for number in self.answers if number < floor]:
                del self.answers[number]
        for name in dropped:
            self.results.pop(name, None)

    def check_backlog(self) -> None:
        """Raise RefusedError where the client is known to have read too few answers and updates."""
        if len(self.answers) + len(self._updates) >= MOST_UNREAD:
            raise RefusedError(429, "too many answers are not read: ask for updates", "TooMany")

    def result(self, name: object) -> Lazy[Any]:
        """A result by name; raises RefusedError where this client has none of it."""
        found = self.results.get(str(name))
        if found is None:
            raise unknown("result", str(name))
        return found


class Clients:
    """The clients of a server; one that sends nothing for `lease` seconds is gone.

    Attributes:
        calls: The calls in flight of each tenant, also those in JSON.
    """

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.calls: Counter[str] = Counter()
        self._server = secrets.token_hex(6)  # of this start of the server
        self._clients: dict[str, RemoteClient] = {}

    def check(self, tenant: str, *names: str) -> None:
        """Raise RefusedError where a tenant has no room for one more of each; the message states the limit."""
        own = [client for client in self.all() if client.tenant == tenant]
        for name in names:
            most, text = LIMITS[name]
            known = {"clients": len(own), "calls": self.calls[tenant]}
            if known.get(name, sum(len(getattr(client, name, ())) for client in own)) >= most:
                raise RefusedError(429, f"this token may have {most} {text}", "TooMany")

    def open(self, tenant: str, leases: float = 1.0) -> RemoteClient:
        """A new client, whose own lease is so many leases; raises RefusedError where the tenant has many already."""
        self.check(tenant, "clients")
        name = f"{self._server}-{secrets.token_hex(8)}"
        client = self._clients[name] = RemoteClient(name, tenant, leases * self.lease)
        return client

    def get(self, name: str, tenant: str) -> RemoteClient | None:
        """A tenant's client by id; None if there is none."""
        client = self._clients.get(name)
        return client if client is not None and client.tenant == tenant else None

    def find(self, name: str, tenant: str) -> RemoteClient:
        """A client by id; raises RefusedError where the server was restarted, or the lease has ended."""
        client = self.get(name, tenant)
        if client is not None:
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

    def all(self) -> Sequence[RemoteClient]:
        """All clients."""
        return tuple(self._clients.values())

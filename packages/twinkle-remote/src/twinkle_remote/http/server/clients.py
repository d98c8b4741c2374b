"""The clients of a server: what each of them holds, and the lease after which it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from twinkle_remote.http.nodes import as_unicode
from twinkle_remote.http.server.body import RefusedError, unknown
from twinkle_remote.http.server.client_generators import ClientGenerators
from twinkle_remote.http.server.lane import Lane
from twinkle_remote.http.server.quota import TenantUse
from twinkle_remote.http.server.renewals import Renewals
from twinkle_remote.http.server.tools import ClientTools
from twinkle_remote.http.wire.envelopes import CallNews

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.http.server.pending_answer import PendingAnswer
    from twinkle_remote.http.server.quota import Quota
    from twinkle_remote.http.wire.frame import WireMessage

_log = logging.getLogger("twinkle.http")
MOST_CLIENTS = 256  # of one tenant
MOST_LINES = 10_000  # news that are not read, above which lines of workers are left out
_LONGEST_LINE = 10_000


class Result(Protocol):
    """What a client's call has become.

    Attributes:
        name: Its name.
        client: The client.
        nbytes: Bytes of its value, once it is there.
    """

    name: str
    client: RemoteClient
    nbytes: int

    def news(self) -> CallNews | None:
        """What the client does not know yet; None if there is nothing."""

    def message(self) -> WireMessage:
        """The value, encoded; raises the error of a failed call."""


class RemoteClient:
    """What one client holds.

    Args:
        name: Its id.
        tenant: The tenant whose token it has.
        loop: The server's event loop.
        use: What its tenant holds.

    Attributes:
        use: As given.
        results: Its results, by name; `keep` and `drop` change them.
        generators: The generators that it has open.
        tools: The tools that it has made.
        renewals: Which ranks are other workers than it knows.
        components: Ids of the components that it built, (group, instance) as it names them.
        lane: The thread that makes its calls, in the order of their arrival.
        is_gone: It has ended, or its lease has.
        busy: Requests of it that are being answered.
        floor: Requests below this number were answered, and the client has the answers.
        told_floor: The latest such number that a call has told, for the event loop to read.
        answers: The answer of each later request by its number.
    """

    def __init__(self, name: str, tenant: str, loop: asyncio.AbstractEventLoop, use: TenantUse) -> None:
        self.name = name
        self.tenant = tenant
        self.use = use
        self.results: dict[str, Result] = {}
        self.generators = ClientGenerators(name)
        self.tools = ClientTools()
        self.renewals = Renewals()
        self.components: set[tuple[str, str]] = set()
        self.lane = Lane(f"twinkle-client-{name[-6:]}")
        self.is_gone = False
        self.busy = 0
        self.seen = time.monotonic()
        self.floor = self.told_floor = 0
        self.answers: dict[int, PendingAnswer] = {}
        self._counting = threading.Lock()
        self._loop = loop
        self._first: dict[str, Callable[[CallNews], None]] = {}
        self._news: deque[tuple[int, CallNews]] = deque()
        self._count = 0
        self._arrived = asyncio.Event()

    def publish(self, news: CallNews) -> None:
        """Tell the client what became of a call; from any thread."""
        self._loop.call_soon_threadsafe(self._tell, news)

    def tell_first(self, name: str, take: Callable[[CallNews], None]) -> None:
        """Have a function take the first news of a call, which then are not among those that the client asks for."""
        self._first[name] = take

    def tell_on_request(self, name: str) -> None:
        """Keep all further news of a call until the client asks."""
        self._first.pop(name, None)

    def tell_line(self, line: str, is_error: bool) -> None:
        """Tell the client what a worker has printed; from any thread. Lines that it does not read are left out."""
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._append_line, line, is_error)

    def _append_line(self, line: str, is_error: bool) -> None:
        if len(self._news) < MOST_LINES:
            self._append(CallNews(line=as_unicode(line[:_LONGEST_LINE]), is_error=is_error))

    def _tell(self, news: CallNews) -> None:
        take = self._first.pop(news.name, None)
        if take is None:
            self._append(news)
        else:
            take(news)

    def _append(self, news: CallNews) -> None:
        self._count += 1
        if news.renewed is not None:
            self.renewals.told(news.renewed[0], news.renewed[1:], self._count)
        self._news.append((self._count, news))
        self._arrived.set()

    async def news(self, after: int, seconds: float) -> Sequence[tuple[int, CallNews]]:
        """The news after a number that the client has read; waits for some."""
        while self._news and self._news[0][0] <= after:
            self._news.popleft()
        if not self._news:
            self._arrived.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return ()
        return tuple(self._news)

    def unread(self) -> bool:
        """Whether it may not have read all news."""
        return bool(self._news)

    def answered(self, floor: int) -> None:
        """Forget the answers that the client has; on the event loop."""
        if floor > self.floor:
            self.floor = floor
            for number in [number for number in self.answers if number < floor]:
                del self.answers[number]

    def keep(self, result: Result) -> None:
        """Keep a result until the client drops it."""
        self.results[result.name] = result
        self.use.add("results")

    def made(self, result: Result, nbytes: int) -> None:
        """Count the bytes of a result, which is there now."""
        with self._counting:
            if result.name in self.results:
                result.nbytes = nbytes
                self.use.add("bytes", nbytes)

    def drop(self, names: Iterable[str]) -> None:
        """Forget results that the client has dropped."""
        for name in names:
            with self._counting:
                found = self.results.pop(name, None)
            if found is not None:
                self.use.add("results", -1)
                self.use.add("bytes", -found.nbytes)

    def result(self, name: str) -> Result:
        """A result by name.

        Raises:
            RefusedError: This client has no such result.
        """
        found = self.results.get(name)
        if found is None:
            raise unknown("result", name)
        return found


class Clients:
    """The clients of a server.

    Args:
        lease: Seconds after which a client that sends nothing is gone.
        server: Id of this start of the server.
        quota: What the clients of one token may hold.
    """

    def __init__(self, lease: float, server: str, quota: Quota) -> None:
        self.lease = lease
        self.server = server
        self._quota = quota
        self._uses: dict[str, TenantUse] = {}
        self._clients: dict[str, RemoteClient] = {}

    def open(self, tenant: str) -> RemoteClient:
        """A new client.

        Raises:
            RefusedError: The tenant has many clients already.
        """
        if sum(client.tenant == tenant for client in self._clients.values()) >= MOST_CLIENTS:
            raise RefusedError(429, f"a tenant has at most {MOST_CLIENTS} clients", "TooMany")
        use = self._uses.setdefault(tenant, TenantUse(self._quota))
        client = RemoteClient(f"{self.server}-{secrets.token_hex(8)}", tenant, asyncio.get_running_loop(), use)
        self._clients[client.name] = client
        return client

    def find(self, name: str, tenant: str) -> RemoteClient:
        """A client by id.

        Raises:
            RefusedError: It is not known to this start of the server, or its lease has ended.
        """
        client = self._clients.get(name)
        if client is not None and client.tenant == tenant:
            client.seen = time.monotonic()
            return client
        if name.partition("-")[0] != self.server:
            raise RefusedError(410, "the server was started anew: what this client held is gone", "Restarted")
        raise RefusedError(
            410, f"the lease of this client has ended: it was not heard of for {self.lease:g} s", "LeaseEnded"
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

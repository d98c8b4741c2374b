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

from twinkle_http.server.calls.client_generators import ClientGenerators
from twinkle_http.server.calls.serial_executor import SerialExecutor
from twinkle_http.server.clients.quota import TenantUse
from twinkle_http.server.clients.restarted_ranks import RestartedRanks
from twinkle_http.server.requests.body import RefusedError, unknown
from twinkle_http.server.tools import ClientTools
from twinkle_http.tags import as_unicode
from twinkle_http.wire.envelopes import CallUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_http.server.calls.pending_answer import PendingAnswer
    from twinkle_http.server.clients.quota import Quota
    from twinkle_http.wire.frame import WireMessage

_log = logging.getLogger("twinkle.http")
MOST_CLIENTS = 256  # of one tenant
MOST_LINES = 10_000  # updates that are not read, above which lines of workers are left out
HELD_SECONDS = 0.02  # for which the answers of some ranks wait for those of the others
_LONGEST_LINE = 10_000


class Result(Protocol):
    """The state of a client's call.

    Attributes:
        name: Its name.
        client: The client.
        nbytes: Bytes of its value, once it is there.
    """

    name: str
    client: RemoteClient
    nbytes: int

    def update(self) -> CallUpdate | None:
        """The update that the client does not know yet; None if there is none."""

    def message(self) -> WireMessage:
        """The value, encoded; raises the error of a failed call."""


class RemoteClient:
    """The holdings of one client.

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
        restarted: The ranks whose workers were restarted and that the client does not know yet.
        components: Ids of the components that it built, (group, instance) as it names them.
        executor: The thread that makes its calls, in the order of their arrival.
        in_flight: Names of its calls that are not done.
        last_was_quick: Whether the method of the last one that ended took next to no time.
        is_gone: It has ended, or its lease has.
        busy: Requests of it that are being answered.
        floor: Requests below this number were answered, and the client has the answers.
        reported_floor: The latest such number that a call has reported, for the event loop to read.
        answers: The answer of each later request by its number.
    """

    def __init__(self, name: str, tenant: str, loop: asyncio.AbstractEventLoop, use: TenantUse) -> None:
        self.name = name
        self.tenant = tenant
        self.use = use
        self.results: dict[str, Result] = {}
        self.generators = ClientGenerators(name)
        self.tools = ClientTools()
        self.restarted = RestartedRanks()
        self.components: set[tuple[str, str]] = set()
        self.executor = SerialExecutor(f"twinkle-client-{name[-6:]}")
        self.in_flight: set[str] = set()
        self.last_was_quick = False
        self.is_gone = False
        self.busy = 0
        self.seen = time.monotonic()
        self.floor = self.reported_floor = 0
        self.answers: dict[int, PendingAnswer] = {}
        self._counting = threading.Lock()
        self._loop = loop
        self._first: dict[str, Callable[[CallUpdate], None]] = {}  # takes the first update of a call, by its name
        self._held: dict[str, CallUpdate] = {}  # of some ranks each
        self._waits = False
        self._updates: deque[tuple[int, CallUpdate]] = deque()
        self._count = 0
        self._arrived = asyncio.Event()

    def publish(self, update: CallUpdate, *, can_wait: bool = False) -> None:
        """Report the outcome of a call to the client; from any thread.

        Args:
            update: The update of the call.
            can_wait: Some ranks have answered, and the client waits for the others: several are reported together.
        """
        self._loop.call_soon_threadsafe(self._take, update, can_wait)

    def answer_with(self, name: str, take: Callable[[CallUpdate], None]) -> None:
        """Have a function take the first update of a call, which then is not among those that the client asks for."""
        self._first[name] = take

    def keep_updates(self, name: str) -> None:
        """Keep all further updates of a call until the client asks."""
        self._first.pop(name, None)
        self._wait_with(name)

    def send_line(self, line: str, is_error: bool) -> None:
        """Send a printed line of a worker to the client; from any thread. Lines that it does not read are left out."""
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._append_line, line, is_error)

    def _append_line(self, line: str, is_error: bool) -> None:
        if len(self._updates) < MOST_LINES:
            self._append(CallUpdate(line=as_unicode(line[:_LONGEST_LINE]), is_error=is_error))

    def _take(self, update: CallUpdate, can_wait: bool) -> None:
        before = self._held.pop(update.name, None)
        if before is not None:
            update.ranks = before.ranks + update.ranks
        if can_wait:
            self._held[update.name] = update
            self._wait_with(update.name)
            return
        take = self._first.pop(update.name, None)
        if take is None:
            self._append(update)
        else:
            take(update)

    def _wait_with(self, name: str) -> None:
        """Begin to wait for more answers to report together; an update that answers a request waits for the end."""
        if name in self._held and name not in self._first and not self._waits:
            self._waits = True
            self._loop.call_later(HELD_SECONDS, self._take_held)

    def _take_held(self) -> None:
        self._waits = False
        for name in [name for name in self._held if name not in self._first]:
            self._append(self._held.pop(name))

    def _append(self, update: CallUpdate) -> None:
        self._count += 1
        if update.restarted is not None:
            self.restarted.reported(update.restarted[0], update.restarted[1:], self._count)
        self._updates.append((self._count, update))
        self._arrived.set()

    async def updates(self, after: int, seconds: float) -> Sequence[tuple[int, CallUpdate]]:
        """The updates after a number that the client has read; waits for some."""
        while self._updates and self._updates[0][0] <= after:
            self._updates.popleft()
        if not self._updates:
            self._arrived.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return ()
        return tuple(self._updates)

    def unread(self) -> bool:
        """Whether it may not have read all updates."""
        return bool(self._updates)

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

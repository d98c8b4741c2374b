"""The holdings of a tenant by plain JSON: components by id, calls in flight, and answers by key."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinkle_http.server.requests.body import RefusedError, unknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from twinkle_http.server.clients.clients import RemoteClient
    from twinkle_http.wire.envelopes import CallUpdate

MOST_COMPONENTS = 1024  # of one tenant
MOST_CALLS = 1024
MOST_LISTED = 8
MOST_KEYS = 100_000
MOST_BYTES_OF_ANSWERS = 64 << 20


@dataclass(slots=True)
class JsonComponent:
    """A component that is known by an id.

    Attributes:
        cls: Its class.
        group: The group that its builder named.
        instance: Its name in that group.
        owned: It was built by plain JSON, and ends with its id; another one was built by a worker.
        busy: Calls of it in flight.
        seen: When it was last asked for, in monotonic seconds.
    """

    cls: type
    group: str
    instance: str
    owned: bool = True
    busy: int = 0
    seen: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """An answer.

    Attributes:
        status: HTTP status.
        body: The result as JSON; empty for an error, and with status 204.
        call: Class.method, where a call was made.
        error: Type of the error; empty without one.
        message: Text of the error.
        request: Id of the request that made the call.
    """

    status: int
    body: bytes = b""
    call: str = ""
    error: str = ""
    message: str = ""
    request: str = ""


@dataclass(slots=True)
class _Kept:
    digest: bytes
    future: asyncio.Future[JsonAnswer] | None


class JsonClient:
    """All that one tenant holds by plain JSON.

    Args:
        client: The client of the server that makes its calls.

    Attributes:
        client: As given.
        components: Its components by id.
        lists: The threads that list the items of its generators.
        listing: Number of generators that are being listed.
    """

    def __init__(self, client: RemoteClient) -> None:
        self.client = client
        self.components: dict[str, JsonComponent] = {}
        self.lists = ThreadPoolExecutor(MOST_LISTED, "twinkle-json-items")
        self.listing = 0
        self._count = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    def find(self, cls: type, id_: str) -> JsonComponent:
        """A component by class and id.

        Raises:
            RefusedError: This tenant has none.
        """
        found = self.components.get(id_)
        if found is None or found.cls is not cls:
            raise unknown("component", id_)
        found.seen = time.monotonic()
        return found

    def add(self, component: JsonComponent) -> str:
        """Remember a component; returns its id."""
        id_ = secrets.token_hex(8)
        self.components[id_] = component
        return id_

    def identify(self, cls: type, group: str, instance: str) -> str:
        """The id of a component; a new one for a component that a worker built."""
        for id_, one in self.components.items():
            if (one.group, one.instance) == (group, instance):
                return id_
        return self.add(JsonComponent(cls, group, instance, owned=False))

    def idle(self, seconds: float) -> Sequence[tuple[str, JsonComponent]]:
        """The components that were not asked for in this time."""
        before = time.monotonic() - seconds
        return [(id_, one) for id_, one in tuple(self.components.items()) if not one.busy and one.seen < before]

    def expect(self) -> tuple[str, asyncio.Future[None]]:
        """The name of a new call, and what is done when the call is.

        Raises:
            RefusedError: Too many are in flight.
        """
        if len(self._waiting) >= MOST_CALLS:
            raise RefusedError(429, f"a tenant has at most {MOST_CALLS} calls in flight", "TooMany")
        name = f"json{next(self._count)}"
        self._waiting[name] = asyncio.get_running_loop().create_future()
        return name, self._waiting[name]

    def forget(self, name: str) -> None:
        """Forget a call."""
        self._waiting.pop(name, None)
        self.client.drop([name])

    async def listen(self) -> None:
        """Read what becomes of the calls, without an end."""
        after = 0
        while True:
            for number, update in await self.client.updates(after, 60.0):
                after = number
                self._take(update)

    def _take(self, update: CallUpdate) -> None:
        waiting = self._waiting.get(update.name)
        is_over = update.done or update.error is not None  # else only some ranks have answered
        if is_over and waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def once(self, key: str, digest: bytes, work: Callable[[], Awaitable[JsonAnswer]]) -> JsonAnswer:
        """The answer to a request; sent again under its key, the same one.

        Args:
            key: The key; empty for a request without one.
            digest: Digest of the request.
            work: Answers it.

        Raises:
            RefusedError: The key was used for another request, or the answer is no longer kept.
        """
        if not key:
            return await work()
        kept = self._kept.get(key)
        if kept is None:
            task = asyncio.ensure_future(work())
            kept = self._kept[key] = _Kept(digest, task)
            task.add_done_callback(lambda future: self._keep(key, future))
        if kept.digest != digest:
            raise RefusedError(409, "this key was used before for another request", "Repeated")
        if kept.future is None:
            raise RefusedError(409, "the request with this key was answered before", "Repeated")
        return await asyncio.shield(kept.future)

    def _keep(self, key: str, future: asyncio.Future[JsonAnswer]) -> None:
        if future.cancelled() or future.exception() is not None or future.result().status in (429, 503):
            self._kept.pop(key, None)  # it had no effect
            return
        self._bytes += len(future.result().body)
        for kept in self._kept.values():
            if self._bytes <= MOST_BYTES_OF_ANSWERS:
                break
            if kept.future is not None and kept.future.done():
                self._bytes -= len(kept.future.result().body)
                kept.future = None
        while len(self._kept) > MOST_KEYS:
            _, oldest = self._kept.popitem(last=False)
            if oldest.future is not None and oldest.future.done():
                self._bytes -= len(oldest.future.result().body)

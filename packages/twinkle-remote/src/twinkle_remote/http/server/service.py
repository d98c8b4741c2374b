"""The requests of Twinkle's own client: open, call, news, late, value, close."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CallTimeoutError, TwinkleError
from twinkle_remote.http.nodes import NodeWriter
from twinkle_remote.http.registered import TYPES
from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.http.server.metrics import metrics_text
from twinkle_remote.http.server.named_rows import rows_named
from twinkle_remote.http.server.pending_answer import AnswerTimer, PendingAnswer
from twinkle_remote.http.server.quick_calls import QuickCalls
from twinkle_remote.http.server.rank_answers import renewed_answers
from twinkle_remote.http.server.renewals import RenewedError
from twinkle_remote.http.server.results import READ_SECONDS, CallOutcome, error_bytes
from twinkle_remote.http.wire.compression import GZIP
from twinkle_remote.http.wire.encode import encode
from twinkle_remote.http.wire.envelopes import CallNews, NewsAnswer, Refusal, packed
from twinkle_remote.http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from msgspec import Raw

    from twinkle_remote.http.server.body import Body
    from twinkle_remote.http.server.calls import CallMaker
    from twinkle_remote.http.server.clients import Clients, RemoteClient
    from twinkle_remote.http.server.journal import Journal
    from twinkle_remote.http.wire.envelopes import CallRequest, NewsRequest
    from twinkle_remote.http.wire.frame import WireMessage
    from twinkle_remote.http.wire.limits import Limits
    from twinkle_remote.sessions.runtime import Runtime

_log = logging.getLogger("twinkle.http")
AT_ONCE_SECONDS = 0.002
SUBMIT_SECONDS = 1.0
LONGEST_POLL_SECONDS = 20.0
DRAINING_POLL_SECONDS = 0.2


class Service:
    """Answers the requests of clients.

    Args:
        runtime: The session.
        maker: Makes calls.
        clients: The clients.
        limits: Bounds of a message.
        journal: Counts and logs calls.
        sees_all: The tenant who sees the figures of all.

    Attributes:
        draining: No new call is taken.
    """

    def __init__(
        self,
        runtime: Runtime,
        maker: CallMaker,
        clients: Clients,
        limits: Limits,
        journal: Journal,
        sees_all: str | None,
    ) -> None:
        self.draining = False
        self.journal = journal
        self.clients = clients
        self.maker = maker
        self.limits = limits
        self._runtime = runtime
        self._quick = QuickCalls(runtime, maker.components)
        self._sees_all = sees_all
        self._timer = AnswerTimer(AT_ONCE_SECONDS)

    def open(self, tenant: str) -> bytes:
        """A new client, and the description of the session."""
        if self.draining:
            raise stops()
        client = self.clients.open(tenant)
        groups = [
            {
                "name": group.name,
                "ranks": group.ranks,
                "device_type": group.device_type,
                "visible_devices": group.visible_devices,
                "gpus_per_worker": group.gpus_per_worker,
                "nodes": group.nodes,
                "size": group.num_workers,
            }
            for group in self._runtime.groups.values()
        ]
        return _answer(
            {
                "client": client.name,
                "mode": self._runtime.mode,
                "groups": groups,
                "lease": self.clients.lease,
                "max_body": self.limits.body,
                "codings": [GZIP],
                "can_revive": self.maker.revival.is_possible,
                "start_timeout": self._runtime.backend.start_timeout,
            }
        )

    def metrics(self, tenant: str) -> str:
        """What the server did and holds, as text: for this tenant, or for all where it sees them."""
        of = None if tenant == self._sees_all else tenant
        return metrics_text(self.journal.figures(of), self._gauges(of))

    def _gauges(self, tenant: str | None) -> Mapping[str, tuple[str, float]]:
        """What the server holds now for a tenant, or for all: help and value by name."""
        clients = [one for one in self.clients.all() if tenant is None or one.tenant == tenant]
        return {
            "twinkle_calls_in_flight": ("Calls that are not done.", self.maker.in_flight(tenant)),
            "twinkle_clients": ("Clients with a lease.", len(clients)),
            "twinkle_components": ("Components that clients built.", sum(len(one.components) for one in clients)),
            "twinkle_results": ("Results that clients hold.", sum(len(one.results) for one in clients)),
            "twinkle_draining": ("1 while no new calls are taken.", int(self.draining)),
        }

    def tell_line(self, line: str, is_error: bool) -> None:
        """Tell all clients what a worker has printed; from any thread."""
        for client in self.clients.all():
            client.tell_line(line, is_error)

    async def call(self, client: RemoteClient, number: int, body: Body[Raw]) -> bytes:
        """The answer to a call: its result's name, and what has become of it; the same answer if it is sent again.

        Raises:
            RefusedError: The number was used for another request.
        """
        client.answered(client.told_floor)
        answer = client.answers.get(number)
        if answer is None:
            if number < client.floor:
                raise RefusedError(409, f"request {number} was answered before", "Repeated")
            if self.draining:
                raise stops()
            answer = client.answers[number] = self._submitted(client, f"r{number}", body)
        if answer.digest != body.digest:
            raise RefusedError(409, f"request {number} was sent before with another body", "Repeated")
        return await answer.data()

    def _submitted(self, client: RemoteClient, name: str, body: Body[Raw]) -> PendingAnswer:
        """Have the client's thread make a call, or make a quick one here, in its turn.

        Its first news are the answer, if they come in a moment; else the answer is that it was accepted, at the latest
        after a second, in which it may not have been made yet.
        """
        answer = PendingAnswer(body.digest)
        client.tell_first(name, lambda news: answer.set(packed(news)))
        loop = asyncio.get_running_loop()

        def accept() -> None:
            client.tell_on_request(name)
            answer.set(packed(CallNews(name, accepted=True)))

        def look() -> None:
            answer.overdue = True
            if answer.made:
                accept()
            else:
                answer.timer = loop.call_later(SUBMIT_SECONDS, accept)

        def make() -> None:
            self._make(client, name, body)
            answer.made = True
            if answer.overdue:
                loop.call_soon_threadsafe(lambda: None if answer.done() else accept())

        self._timer.add(answer, look)
        quick = self._quick.read(client, body) if client.lane.is_idle() else None
        if quick is not None and self._make(client, name, body, quick):
            answer.made = True
        else:
            client.lane.put(make)
        return answer

    def _make(self, client: RemoteClient, name: str, body: Body[Raw], quick: CallRequest | None = None) -> bool:
        """Make a call, in the client's thread or on the event loop; one that cannot be made is its news.

        Args:
            client: The client.
            name: Name of its result.
            body: The request.
            quick: The same, if the event loop makes the call.

        Returns:
            False if the event loop would have to wait: then nothing was sent, and the client's thread makes it.
        """
        request_id = f"{client.name[-8:]}-{name[1:]}"
        try:
            request = self.maker.decode(client, body) if quick is None else quick
            client.told_floor = max(client.told_floor, request.floor)
            if request.drop:
                client.drop(request.drop)
            client.use.check("calls", "results", "bytes")
            self.maker.make(client, name, request, request_id, at_once=quick is not None)
        except RenewedError as error:
            group = self._runtime.backend.group(str(request.group))
            client.publish(CallNews(name, done=True, ranks=renewed_answers(group, request.ranks, error.ranks)))
        except (RefusedError, WireFormatError) as error:
            client.publish(CallNews(name, refused=_refusal(error, request_id)))
        except BaseException as error:  # it is the caller's, and this thread makes the next call
            if quick is not None and isinstance(error, CallTimeoutError):
                return False
            client.publish(CallNews(name, unsent=error_bytes(error, self.maker.describer(client))))
        return True

    async def news(self, client: RemoteClient, request: NewsRequest) -> bytes:
        """What became of the client's calls."""
        client.answered(request.floor)
        client.drop(request.drop)
        longest = DRAINING_POLL_SECONDS if self.draining else min(LONGEST_POLL_SECONDS, self.clients.lease / 2)
        found = await client.news(request.after, max(0.0, min(longest, request.seconds)))
        return packed(NewsAnswer(list(found), self.draining))

    def late(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """The error that a call is late, with the stacks of its ranks."""
        result = client.result(str(request["name"]))
        if not isinstance(result, CallOutcome):
            raise RefusedError(409, "this is built by the server, and has no ranks yet", "NoRanks")
        error = result.call.lateness(float(request["seconds"]))
        return _answer({"error": error_bytes(error, self.maker.describer(client))})

    def cancel(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """Cancel a call on the event loops of its workers."""
        result = client.result(str(request["name"]))
        if isinstance(result, CallOutcome):
            result.call.cancel()
        return _answer({})

    def withdraw(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """Cancel a call also on the workers that have not begun it."""
        result = client.result(str(request["name"]))
        if isinstance(result, CallOutcome):
            result.call.withdraw()
        return _answer({})

    def ranks(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """The answers of single ranks of a call; from now on the news tell of the others."""
        result = client.result(str(request["name"]))
        if not isinstance(result, CallOutcome):
            raise RefusedError(409, "this is built by the server, and has no ranks", "NoRanks")
        return packed(result.by_rank())

    def rows(self, client: RemoteClient, request: Mapping[str, Any]) -> WireMessage:
        """The value of rows that the client names, encoded."""
        rows = rows_named(client, request.get("pieces"))
        describe = self.maker.describer(client)
        try:
            value = rows.result(READ_SECONDS)
            return encode(value, TYPES, what="a result", named=NodeWriter(TYPES, describe).node)
        except Exception as error:  # it is the caller's
            return encode({"error": error_bytes(error, describe)}, TYPES)

    def value(self, client: RemoteClient, name: str) -> WireMessage:
        """The value of a result, encoded."""
        result = client.result(name)
        try:
            return result.message()
        except Exception as error:  # it is the caller's
            return encode({"error": error_bytes(error, self.maker.describer(client))}, TYPES)

    def close(self, client: RemoteClient) -> None:
        """Release all that a client holds; takes as long as its components take."""
        self.clients.forget(client)
        client.lane.submit(self.maker.cancel_all, client)  # behind the calls that it sent before
        client.lane.shutdown(wait=False)
        client.drop(list(client.results))
        client.tools.close()
        try:
            self.maker.close_generators(client)
        except TwinkleError as error:
            _log.warning("a generator of a client that is gone was not closed: %s", ascii(str(error)[:300]))
        for refused in self.maker.drop_all(client):
            _log.warning("a component of a client that is gone was not released: %s", ascii(str(refused)[:300]))


def _refusal(error: Exception, request: str) -> Refusal:
    if isinstance(error, RefusedError):
        return Refusal(error.status, error.kind, error.why, request)
    return Refusal(400, "Malformed", str(error), request)


def stops() -> RefusedError:
    """The answer to calls while the server drains."""
    return RefusedError(503, "the server stops, and takes no new calls", "Stopping")


def _answer(value: dict[str, Any]) -> bytes:
    return encode(value, TYPES).to_bytes()

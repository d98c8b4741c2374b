"""The requests of Twinkle's own client: open, call, updates, late, value, close."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from twinkle_http.server.calls.named_rows import rows_named
from twinkle_http.server.calls.pending_answer import AnswerTimer, PendingAnswer
from twinkle_http.server.calls.served_call import (
    QUICK_SECONDS,
    READ_SECONDS,
    ServedCall,
    error_bytes,
    restarted_answers,
)
from twinkle_http.server.clients.restarted_ranks import RestartedError
from twinkle_http.server.clients.watcher import queues_in_memory
from twinkle_http.server.requests.body import RefusedError
from twinkle_http.server.requests.metrics import metrics_text
from twinkle_http.tags import TagWriter
from twinkle_http.wire.compression import GZIP
from twinkle_http.wire.encode import encode
from twinkle_http.wire.envelopes import CallUpdate, Refusal, UpdateAnswer, packed
from twinkle_http.wire.errors import WireFormatError
from twinkle_remote.errors import CallTimeoutError, TwinkleError
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from msgspec import Raw

    from twinkle_http.server.calls.call_decoder import DecodedCall
    from twinkle_http.server.calls.call_executor import CallExecutor
    from twinkle_http.server.clients.clients import Clients, RemoteClient
    from twinkle_http.server.requests.access_log import AccessLog
    from twinkle_http.server.requests.body import Body
    from twinkle_http.wire.envelopes import CallRequest, UpdateRequest
    from twinkle_http.wire.frame import WireMessage
    from twinkle_http.wire.limits import Limits
    from twinkle_remote.backends.serving import ServedSession

_log = logging.getLogger("twinkle.http")
DELAY_SECONDS = 0.02  # that the machine may take, beside the method, for the only call of a client
SUBMIT_SECONDS = 1.0
LONGEST_POLL_SECONDS = 20.0
DRAINING_POLL_SECONDS = 0.2


class ClientApi:
    """Answers the requests of clients.

    Args:
        session: The session.
        calls: Makes calls.
        clients: The clients.
        limits: Bounds of a message.
        access_log: Counts and logs calls.
        sees_all: The tenant who sees the metrics of all.

    Attributes:
        draining: No new call is taken.
    """

    def __init__(
        self,
        session: ServedSession,
        calls: CallExecutor,
        clients: Clients,
        limits: Limits,
        access_log: AccessLog,
        sees_all: str | None,
    ) -> None:
        self.draining = False
        self.access_log = access_log
        self.clients = clients
        self.calls = calls
        self.limits = limits
        self._session = session
        self._in_memory = queues_in_memory(session)
        self._sees_all = sees_all
        self._timer, self._later_timer = AnswerTimer(QUICK_SECONDS), AnswerTimer(DELAY_SECONDS)

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
            for group in self._session.groups.values()
        ]
        return _answer(
            {
                "client": client.name,
                "mode": self._session.mode,
                "groups": groups,
                "lease": self.clients.lease,
                "max_body": self.limits.body,
                "codings": [GZIP],
                "can_restart": self.calls.restarts.is_possible,
                "start_timeout": self._session.backend.start_timeout,
            }
        )

    def metrics(self, tenant: str) -> str:
        """The metrics of the server as text: for this tenant, or for all tenants if it sees them."""
        of = None if tenant == self._sees_all else tenant
        return metrics_text(self.access_log.metrics(of), self._gauges(of))

    def _gauges(self, tenant: str | None) -> Mapping[str, tuple[str, float]]:
        """The holdings of the server now for a tenant, or for all: help and value by name."""
        clients = [one for one in self.clients.all() if tenant is None or one.tenant == tenant]
        return {
            "twinkle_calls_in_flight": ("Calls that are not done.", self.calls.in_flight(tenant)),
            "twinkle_clients": ("Clients with a lease.", len(clients)),
            "twinkle_components": ("Components that clients built.", sum(len(one.components) for one in clients)),
            "twinkle_results": ("Results that clients hold.", sum(len(one.results) for one in clients)),
            "twinkle_draining": ("1 while no new calls are taken.", int(self.draining)),
        }

    def send_line(self, line: str, is_error: bool) -> None:
        """Send a printed line of a worker to all clients; from any thread."""
        for client in self.clients.all():
            client.send_line(line, is_error)

    async def call(self, client: RemoteClient, number: int, body: Body[Raw]) -> bytes:
        """The answer to a call: the name and the state of its result; the same answer if it is sent again.

        Raises:
            RefusedError: The number was used for another request.
        """
        client.answered(client.reported_floor)
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
        """Have the client's thread make a call, or make it here, in its turn.

        Its first update is the answer, if it comes in a moment; else the answer is that it was accepted, at the latest
        after a second, in which it may not have been made yet. The moment is longer for the only call of a client whose
        last method took less than one: an answer that is late only because the machine is busy costs no second request.
        """
        answer = PendingAnswer(body.digest)
        client.answer_with(name, lambda update: answer.set(packed(update)))
        loop = asyncio.get_running_loop()

        def accept() -> None:
            client.keep_updates(name)
            answer.set(packed(CallUpdate(name, accepted=True)))

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

        is_only = client.last_was_quick and not client.in_flight
        (self._later_timer if is_only else self._timer).add(answer, look)
        inline = None
        if self._in_memory and client.executor.is_idle():
            inline = self.calls.decoder.inline(client, body, _request_id(client, name))
        if inline is not None and self._make(client, name, body, inline):
            answer.made = True
        else:
            client.executor.put(make)
        return answer

    def _make(
        self,
        client: RemoteClient,
        name: str,
        body: Body[Raw],
        inline: tuple[CallRequest, DecodedCall] | None = None,
    ) -> bool:
        """Make a call, in the client's thread or on the event loop; one that cannot be made is its update.

        Args:
            client: The client.
            name: Name of its result.
            body: The request.
            inline: The same, and the call, if the event loop makes it.

        Returns:
            False if the event loop would have to wait: then nothing was sent, and the client's thread makes it.
        """
        request_id = _request_id(client, name)
        try:
            request, call = (self.calls.decoder.request(client, body), None) if inline is None else inline
            client.reported_floor = max(client.reported_floor, request.floor)
            if request.drop:
                client.drop(request.drop)
            client.use.check("calls", "results", "bytes")
            self.calls.make(client, name, request, request_id, call)
        except RestartedError as error:
            group = self._session.backend.group(str(request.group))
            client.publish(CallUpdate(name, done=True, ranks=restarted_answers(group, request.ranks, error.ranks)))
        except (RefusedError, WireFormatError) as error:
            client.publish(CallUpdate(name, refused=_refusal(error, request_id)))
        except BaseException as error:  # it is the caller's, and this thread makes the next call
            if inline is not None and isinstance(error, CallTimeoutError):
                return False
            client.publish(CallUpdate(name, unsent=error_bytes(error, self.calls.describer(client))))
        return True

    async def updates(self, client: RemoteClient, request: UpdateRequest) -> bytes:
        """The updates on the client's calls."""
        client.answered(request.floor)
        client.drop(request.drop)
        longest = DRAINING_POLL_SECONDS if self.draining else min(LONGEST_POLL_SECONDS, self.clients.lease / 2)
        found = await client.updates(request.after, max(0.0, min(longest, request.seconds)))
        return packed(UpdateAnswer(list(found), self.draining))

    def late(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """The error that a call is late, with the stacks of its ranks."""
        result = client.result(str(request["name"]))
        if not isinstance(result, ServedCall):
            raise RefusedError(409, "this is built by the server, and has no ranks yet", "NoRanks")
        error = result.call.lateness(float(request["seconds"]))
        return _answer({"error": error_bytes(error, self.calls.describer(client))})

    def cancel(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """Cancel a call on the event loops of its workers."""
        result = client.result(str(request["name"]))
        if isinstance(result, ServedCall):
            result.call.cancel()
        return _answer({})

    def withdraw(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """Cancel a call also on the workers that have not begun it."""
        result = client.result(str(request["name"]))
        if isinstance(result, ServedCall):
            result.call.withdraw()
        return _answer({})

    def rows(self, client: RemoteClient, request: Mapping[str, Any]) -> WireMessage:
        """The value of rows that the client names, encoded."""
        rows = rows_named(client, request.get("pieces"))
        describe = self.calls.describer(client)
        try:
            value = rows.result(READ_SECONDS)
            return encode(value, TYPES, what="a result", named=TagWriter(TYPES, describe).node)
        except Exception as error:  # it is the caller's
            return encode({"error": error_bytes(error, describe)}, TYPES)

    def value(self, client: RemoteClient, name: str) -> WireMessage:
        """The value of a result, encoded."""
        result = client.result(name)
        try:
            return result.message()
        except Exception as error:  # it is the caller's
            return encode({"error": error_bytes(error, self.calls.describer(client))}, TYPES)

    def close(self, client: RemoteClient) -> None:
        """Release all that a client holds; takes as long as its components take."""
        self.clients.forget(client)
        client.executor.submit(self.calls.cancel_all, client)  # behind the calls that it sent before
        client.executor.shutdown(wait=False)
        client.drop(list(client.results))
        client.tools.close()
        try:
            self.calls.close_generators(client)
        except TwinkleError as error:
            _log.warning("a generator of a client that is gone was not closed: %s", ascii(str(error)[:300]))
        for refused in self.calls.drop_all(client):
            _log.warning("a component of a client that is gone was not released: %s", ascii(str(refused)[:300]))


def _request_id(client: RemoteClient, name: str) -> str:
    return f"{client.name[-8:]}-{name[1:]}"


def _refusal(error: Exception, request: str) -> Refusal:
    if isinstance(error, RefusedError):
        return Refusal(error.status, error.kind, error.why, request)
    return Refusal(400, "Malformed", str(error), request)


def stops() -> RefusedError:
    """The answer to calls while the server drains."""
    return RefusedError(503, "the server stops, and takes no new calls", "Stopping")


def _answer(value: dict[str, Any]) -> bytes:
    return encode(value, TYPES).to_bytes()

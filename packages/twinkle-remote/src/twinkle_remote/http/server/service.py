"""The requests of Twinkle's own client: open, call, news, late, value, close."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import TwinkleError
from twinkle_remote.http.registered import TYPES
from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.http.server.clients import MOST_RESULTS, Clients
from twinkle_remote.http.server.results import CallOutcome, WorkOutcome, error_bytes
from twinkle_remote.http.wire.encode import encode
from twinkle_remote.http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_remote.http.server.body import Body
    from twinkle_remote.http.server.calls import CallMaker
    from twinkle_remote.http.server.clients import RemoteClient
    from twinkle_remote.http.wire.frame import WireMessage
    from twinkle_remote.http.wire.limits import Limits
    from twinkle_remote.sessions.runtime import Runtime

_log = logging.getLogger("twinkle.http")
SUBMIT_SECONDS = 1.0
LONGEST_POLL_SECONDS = 20.0


class Service:
    """Answers the requests of clients.

    Args:
        runtime: The session.
        maker: Makes calls.
        clients: The clients.
        limits: Bounds of a message.

    Attributes:
        draining: No new call is taken.
    """

    def __init__(self, runtime: Runtime, maker: CallMaker, clients: Clients, limits: Limits) -> None:
        self.draining = False
        self.clients = clients
        self.maker = maker
        self.limits = limits
        self._runtime = runtime

    def open(self, tenant: str) -> bytes:
        """A new client, and the description of the session."""
        if self.draining:
            raise _stops()
        client = self.clients.open(tenant)
        groups = [
            {
                "name": group.name,
                "ranks": group.ranks,
                "device_type": group.device_type,
                "visible_devices": group.visible_devices,
                "gpus_per_worker": group.gpus_per_worker,
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
                "start_timeout": self._runtime.backend.start_timeout,
            }
        )

    async def call(self, client: RemoteClient, number: int, body: Body) -> bytes:
        """The answer to a call: its result's name, and what has become of it; the same answer if it is sent again.

        Raises:
            RefusedError: The number was used for another request.
        """
        known = client.answers.get(number)
        if known is None:
            if number < client.floor:
                raise RefusedError(409, f"request {number} was answered before", "Repeated")
            if self.draining:
                raise _stops()
            if len(client.results) >= MOST_RESULTS:
                raise RefusedError(429, f"a client keeps at most {MOST_RESULTS} results", "TooMany")
            future = asyncio.ensure_future(self._submit(client, f"r{number}", body))
            known = client.answers[number] = body.digest, future
        if known[0] != body.digest:
            raise RefusedError(409, f"request {number} was sent before with another body", "Repeated")
        return await asyncio.shield(known[1])

    async def _submit(self, client: RemoteClient, name: str, body: Body) -> bytes:
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(client.lane, self._make, client, name, body)
        done, _ = await asyncio.wait([work], timeout=SUBMIT_SECONDS)
        if done:
            return work.result()
        work.add_done_callback(lambda late: self._tell_late(client, name, late))
        return _answer({"name": name, "news": None})

    def _make(self, client: RemoteClient, name: str, body: Body) -> bytes:
        """Make a call, in the client's thread."""
        try:
            request = self.maker.decode(client, body)
            client.answered(int(request.get("floor", 0)))
            client.drop(map(str, request.get("drop", ())))
            result = self.maker.make(client, name, request)
            news = result.news()
            if news is None and isinstance(result, WorkOutcome):
                result.when_done(client.publish)
            return _answer({"name": name, "news": news})
        except (RefusedError, WireFormatError) as error:
            return _answer({"refused": _refusal(error)})
        except Exception as error:  # it is the caller's
            return _answer({"error": error_bytes(error, self.maker.describer(client))})

    def _tell_late(self, client: RemoteClient, name: str, late: asyncio.Future[bytes]) -> None:
        """Tell of a call whose submission took long."""
        client.publish({"name": name, "answer": late.result()})

    async def news(self, client: RemoteClient, request: Mapping[str, Any]) -> bytes:
        """What became of the client's calls."""
        client.answered(int(request["floor"]))
        client.drop(map(str, request["drop"]))
        seconds = max(0.0, min(LONGEST_POLL_SECONDS, float(request["seconds"])))
        found = await client.news(int(request["after"]), 0.0 if self.draining else seconds)
        return _answer({"news": [[number, news] for number, news in found], "draining": self.draining})

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
        client.results.clear()
        for group, instance in tuple(client.components):
            try:
                self.maker.drop(client, group, instance)
            except TwinkleError as error:
                _log.warning("a component of a client that is gone was not released: %s", ascii(str(error)[:300]))


def _refusal(error: Exception) -> dict[str, Any]:
    if isinstance(error, RefusedError):
        return {"status": error.status, "type": error.kind, "message": error.why}
    return {"status": 400, "type": "Malformed", "message": str(error)}


def _stops() -> RefusedError:
    return RefusedError(503, "the server stops, and takes no new calls", "Stopping")


def _answer(value: dict[str, Any]) -> bytes:
    return encode(value, TYPES).to_bytes()

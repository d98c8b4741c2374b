"""The routes of a server behind its gate: those of Twinkle's own client, health, and those of JSON.

It is plain ASGI: small calls do not pay for routes and request objects. What may wait is done in threads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_http.errors import WireFormatError
from twinkle_http.gate import RefusedError, read_body, stops
from twinkle_http.messages import (
    CallRequest,
    CallUpdate,
    ResultRequest,
    UpdateAnswer,
    UpdateRequest,
    as_envelope,
    packed,
    unpacked,
)
from twinkle_http.server.ends import result_of
from twinkle_http.wire import encode, opened

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from twinkle_http.json_api import JsonApi
    from twinkle_http.server.calls import Calls
    from twinkle_http.server.clients import Clients, RemoteClient
    from twinkle_http.wire import WireMessage
    from twinkle_remote.backends.serving import ServedSession

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    Reply = bytes | WireMessage
    Handler = Callable[[Any, bytearray, RemoteClient], Awaitable[Reply]]

ROOT = "/twinkle/1/"
_ANSWER_CHUNK = 8 << 20  # bytes; the event loop writes one while the client reads, and waits for it
_SENT_SECONDS = 1.0  # after which a call was taken, though it may not have been sent yet
_EAGER_SECONDS = 0.05  # the same for one whose caller waits for the value
_LONGEST_POLL_SECONDS = 20.0
_DRAINING_POLL_SECONDS = 0.2


class App:
    """An ASGI application, which takes bodies of at most `most` bytes.

    Attributes:
        draining: No new call is taken.
    """

    def __init__(self, session: ServedSession, calls: Calls, clients: Clients, json: JsonApi, most: int) -> None:
        self.draining = False
        self._session, self._calls, self._clients, self._json, self._most = session, calls, clients, json, most
        self._handlers: dict[str, Handler] = {
            "call": self._call,
            "updates": self._updates,
            "read": self._of_result(calls.read),
            "cancel": self._of_result(calls.cancel),
            "close": self._close,
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path, verb = scope["path"], scope["method"]
        name = path.removeprefix(ROOT) if verb == "POST" else ""
        status, kind = 200, b"application/x-twinkle"
        answer: Reply = b""
        if path == "/health":
            status = 503 if self.draining else 204
        elif name == "open":
            answer = self._open(scope)
        elif name in self._handlers:
            answer = await self._of_client(self._handlers[name], scope, receive)
        else:
            kind = b"application/json"
            status, answer = await self._json.answer(scope, partial(read_body, scope, receive), self.draining)
        parts: Iterable[bytes | memoryview] = (answer,) if isinstance(answer, bytes) else answer.chunks(_ANSWER_CHUNK)
        size = len(answer) if isinstance(answer, bytes) else answer.nbytes
        headers = [(b"content-length", b"%d" % size), (b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers if status != 204 else []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    def _open(self, scope: Any) -> bytes:
        """A new client, and the description of the session."""
        self._check_running()
        client = self._clients.open(scope["state"]["tenant"])
        groups = {name: group.num_workers for name, group in self._session.groups.items()}
        described = {
            "client": client.name,
            "groups": groups,
            "any_group": self._session.mode == "local" and not groups,
            "lease": self._clients.lease,
            "max_body": self._most,
        }
        return encode(described).to_bytes()

    def _check_running(self) -> None:
        if self.draining:
            raise stops()

    async def _of_client(self, handler: Handler, scope: Any, receive: Receive) -> Reply:
        """The answer to a request of a client that is open."""
        state = scope["state"]
        name = state["headers"].get(b"twinkle-client", b"").decode("latin-1")
        client = self._clients.find(name, state["tenant"])
        client.busy += 1
        try:
            return await handler(scope, await read_body(scope, receive, self._most), client)
        except WireFormatError as error:
            raise RefusedError(400, str(error), "Malformed") from None
        finally:
            client.busy -= 1

    async def _call(self, scope: Any, body: bytearray, client: RemoteClient) -> bytes:
        """The answer to a call: its end if the caller waits for it, else that it was sent; the same one if asked again.

        Raises:
            RefusedError: It was answered before, and the client has the answer.
        """
        text = scope["state"]["headers"].get(b"twinkle-request", b"")
        if not text.isdigit() or len(text) > 18:
            raise RefusedError(400, "a call has a number: Twinkle-Request: 1", "Malformed")
        number = int(text)
        answer = client.answers.get(number)
        if answer is None:
            if number < client.floor:
                raise RefusedError(409, f"request {number} was answered before", "Repeated")
            tree, buffers = opened(body)
            request = as_envelope(tree, CallRequest)
            self._check_running()
            client.acknowledge(request.floor, request.drop)
            client.check_backlog()
            loop = asyncio.get_running_loop()
            answer = client.answers[number] = loop.create_future()
            seconds = _EAGER_SECONDS if request.eager else _SENT_SECONDS
            timer = loop.call_later(seconds, client.take, CallUpdate(number, accepted=True))
            answer.add_done_callback(lambda _: timer.cancel())
            client.turn.put(partial(self._calls.make, client, number, request, buffers))
        return await asyncio.shield(answer)

    async def _updates(self, scope: Any, body: bytearray, client: RemoteClient) -> bytes:
        request = unpacked(body, UpdateRequest)
        client.acknowledge(request.floor, request.drop)
        longest = _DRAINING_POLL_SECONDS if self.draining else min(_LONGEST_POLL_SECONDS, self._clients.lease / 2)
        found = await client.updates(request.after, max(0.0, min(longest, request.seconds)))
        return packed(UpdateAnswer(list(found), self.draining))

    def _of_result(self, work: Callable[..., WireMessage | None]) -> Handler:
        async def handler(scope: Any, body: bytearray, client: RemoteClient) -> Reply:
            tree, buffers = opened(body)
            request = as_envelope(tree, ResultRequest)
            return await result_of(partial(work, client, request, buffers)) or b""

        return handler

    async def _close(self, scope: Any, body: bytearray, client: RemoteClient) -> bytes:
        self._clients.forget(client)
        await result_of(partial(self._calls.close, client))
        return b""

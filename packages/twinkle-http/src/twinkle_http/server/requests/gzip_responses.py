"""Answers that are compressed for clients that ask for it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from twinkle_http.wire.compression import GZIP, writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Send = Callable[[Any], Awaitable[None]]
    App = Callable[[Any, Any, Send], Awaitable[None]]

LEAST_BYTES = 1024
_IN_A_THREAD_BYTES = 64 * 1024


class GzipResponses:
    """An ASGI application before another one.

    Args:
        app: Its answers are compressed if the request accepts gzip and they are not small. The state of a request has
            its headers by name.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Answer a request."""
        accepted = scope["state"]["headers"].get(b"accept-encoding", b"")
        if accepted and any(coding.strip() == b"gzip" for coding in accepted.lower().split(b",")):
            send = _GzipResponse(send).send
        await self._app(scope, receive, send)


class _GzipResponse:
    """Compresses one answer as it is sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Any = None
        self._writer: Any = None

    async def send(self, message: Any) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            await self._begin(len(body), more)
        if self._writer is None:
            await self._send(message)
            return
        if len(body) > _IN_A_THREAD_BYTES:
            made = await run_in_threadpool(self._writer.compress, body)
        else:
            made = self._writer.compress(body)
        if not more:
            made += self._writer.flush(zlib.Z_FINISH)
        if made or not more:
            await self._send({"type": "http.response.body", "body": made, "more_body": more})

    async def _begin(self, size: int, more: bool) -> None:
        start, self._start = self._start, None
        if more or size >= LEAST_BYTES:
            self._writer = writer()
            kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            coding = [(b"content-encoding", GZIP.encode("ascii")), (b"vary", b"accept-encoding")]
            start = {**start, "headers": [*kept, *coding]}
        await self._send(start)

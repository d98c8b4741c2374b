"""The gate before every route: a known token, a bounded body, and one line of the log for each refusal and each call.

What is exposed to strangers needs a proxy before it (docs/deployment.md): slow clients, rates and compression are its
work. The frame of a request is checked by h11.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from xxhash import xxh3_64

from twinkle_http.messages import MessageReader
from twinkle_http.server.tokens import token_of_environment, tokens_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from msgspec.msgpack import Decoder

    from twinkle_http.messages import Buffer, Limits, MessageHead

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    App = Callable[[Any, Receive, Send], Awaitable[None]]

T = TypeVar("T")
_access = logging.getLogger("twinkle.http.access")
_LEAST_CHARACTERS = 8
MOST_HEAD_BYTES = 64 * 1024


class RefusedError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        why: The message for the client.
        kind: A word that the client's code can compare.
    """

    def __init__(self, status: int, why: str, kind: str = "Refused") -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.kind = kind


def unknown(what: str, name: str) -> RefusedError:
    """The answer for ids that are unknown and for those of others."""
    return RefusedError(404, f"there is no {what} {name[:80]!a}", "Unknown")


def stops() -> RefusedError:
    """The answer to calls while the server drains."""
    return RefusedError(503, "the server stops, and takes no new calls", "Stopping")


class Auth:
    """The tenants of a server, by their tokens.

    Args:
        token: One token, the token of each tenant, or a file of them; None takes that of TWINKLE_TOKEN, or makes one.

    Attributes:
        token: The token that was made; None if tokens were given.

    Raises:
        ValueError: A token is short, given twice, or not of ASCII characters that a header can hold.
    """

    def __init__(self, token: str | Mapping[str, str] | Path | None) -> None:
        token = tokens_of(token) if isinstance(token, Path) else token or token_of_environment()
        self.token = secrets.token_urlsafe(32) if token is None else None
        given = {"": self.token or token} if token is None or isinstance(token, str) else dict(token)
        for tenant, one in given.items():
            if not isinstance(one, str) or len(one) < _LEAST_CHARACTERS or not one.isascii() or not one.isprintable():
                raise ValueError(
                    f"the token of tenant {tenant!r} is not valid: it has at least {_LEAST_CHARACTERS} printable "
                    "ASCII characters"
                )
        self._tokens = {tenant: str(one).encode("ascii") for tenant, one in given.items()}
        if len(set(self._tokens.values())) != len(self._tokens):
            raise ValueError("two tenants have the same token: give each its own token")

    def tenant(self, header: bytes) -> str | None:
        """Return the tenant of an Authorization header; None if its token is not known. Takes the same time for all."""
        scheme, _, given = header.partition(b" ")
        found = None
        for tenant, token in self._tokens.items():
            if hmac.compare_digest(token, given.strip()):
                found = tenant
        return found if scheme.lower() == b"bearer" else None

    def only(self) -> str:
        """Return the one token; empty if there are several."""
        tokens = list(self._tokens.values())
        return tokens[0].decode("ascii") if len(tokens) == 1 else ""


class AccessLog:
    """One line for each refused request and each call; with the level DEBUG, for each request. Text is escaped."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)

    def next_id(self) -> str:
        """Return the id of a new request."""
        return f"{self._prefix}-{next(self._count)}"

    def answered(self, scope: Any, status: int, seconds: float) -> None:
        """Log a request that was refused; with DEBUG, every request."""
        level = logging.INFO if status >= 400 else logging.DEBUG
        state = scope["state"]
        _access.log(
            level,
            "%s %s %s %d %s%.1f ms, request %s",
            state.get("tenant") or "-",
            ascii(scope["method"])[1:-1],
            ascii(scope["path"][:200]),
            status,
            f"{ascii(state['error'])[1:-1]} " if state.get("error") else "",
            1000 * seconds,
            state["request"],
        )

    def called(self, name: str, tenant: str, request: str, seconds: float, error: str = "") -> None:
        """Log a call that has ended.

        Args:
            name: Class.method.
            tenant: Whose it was.
            request: Id of its request.
            seconds: Time from its submission to the answer of its last rank.
            error: Type of its error; empty without one.
        """
        outcome = f"failed with {ascii(error)[1:-1]}" if error else "done"
        _access.info("%s %s %s, %.4f s, request %s", tenant or "-", ascii(name)[1:-1], outcome, seconds, request)

    @contextlib.contextmanager
    def calling(self, name: str, tenant: str, request: str) -> Iterator[None]:
        """Log a call with the time of the block; see `called`."""
        began, error = time.monotonic(), ""
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.called(name, tenant, request, time.monotonic() - began, error)


class Gate:
    """An ASGI application before another one.

    Args:
        app: The application for accepted requests; `scope["state"]["tenant"]` names the tenant.
        auth: The tokens.
        access_log: Logs requests.
    """

    def __init__(self, app: App, auth: Auth, access_log: AccessLog) -> None:
        self._app = app
        self._auth = auth
        self._access_log = access_log

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request; 401 before anything of its body is read."""
        if scope["type"] != "http":
            return
        headers = scope["state"]["headers"] = dict(scope["headers"])
        scope["state"]["request"] = self._access_log.next_id()
        began, status = time.perf_counter(), 0

        async def sending(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        tenant = "" if scope["path"] == "/health" else self._auth.tenant(headers.get(b"authorization", b""))
        try:
            if tenant is None:
                scope["state"]["error"] = "without a known token"
                why = "the token is not known here: send Authorization: Bearer <token>"
                await refuse(scope, sending, 401, "Refused", why)
            else:
                scope["state"]["tenant"] = tenant
                await self._app(scope, receive, sending)
        finally:
            self._access_log.answered(scope, status, time.perf_counter() - began)


_ENDING = (400, 401, 413, 415)
"""Statuses after which the rest of a request is not read: the connection is closed."""


async def refuse(scope: Any, send: Send, status: int, kind: str, why: str) -> None:
    """Answer with an error as JSON: its type, its message and the id of the request."""
    scope["state"].setdefault("error", kind)
    body = json.dumps({"error": {"type": kind, "message": why, "request": scope["state"]["request"]}}).encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    if status in _ENDING:
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True)
class Body(Generic[T]):
    """A message that has arrived.

    Attributes:
        root: Its root.
        buffers: Its raw buffers.
        digest: Its size and checksum: a request that is sent again has the same.
    """

    root: T
    buffers: list[Buffer]
    digest: tuple[int, int]


async def read_body(scope: Any, receive: Receive, limits: Limits, decoder: Decoder[MessageHead[T]]) -> Body[T]:
    """Read a message; waits for the client's bytes, and ends when they are there or the client is gone.

    Args:
        scope: The request, with its headers by name in its state.
        receive: Its parts.
        limits: What is accepted.
        decoder: Reads the head.

    Raises:
        RefusedError: It is too large, or the client went away.
        WireFormatError: It is no message.
    """
    reader = MessageReader(limits, decoder)
    digest = await take_body(scope, receive, limits.body, reader.feed)
    return Body(*reader.finish(), digest)


async def take_body(scope: Any, receive: Receive, most: int, take: Callable[[bytes], None]) -> tuple[int, int]:
    """Pass on the parts of a body as they arrive; returns its size and checksum.

    Args:
        scope: The request, with its headers by name in its state.
        receive: Its parts.
        most: Bytes of it at most.
        take: Takes each part.

    Raises:
        RefusedError: It is too large or compressed, or the client went away.
    """
    headers = scope["state"]["headers"]
    length = headers.get(b"content-length", b"0")
    if len(length) > 20 or int(length) > most:
        raise _too_large(most)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RefusedError(415, "a body is not compressed here", "Coding")
    size, checksum, more = 0, xxh3_64(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the client went away", "Gone")
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > most:
            raise _too_large(most)
        checksum.update(part)
        take(part)
    return size, checksum.intdigest()


def _too_large(most: int) -> RefusedError:
    return RefusedError(413, f"a body has at most {most} bytes here", "TooLarge")

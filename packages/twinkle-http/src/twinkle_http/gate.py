"""The gate of a server: a known token before every route, a bounded body, and TLS beyond this machine.

It is an ASGI application before another one, and writes one line of the log for each request that is refused. What is
exposed to strangers needs a proxy before it (docs/deployment.md): slow clients, rates and compression are its work. The
frame of a request is checked by h11.
"""

from __future__ import annotations

import hmac
import ipaddress
import itertools
import json
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    App = Callable[[Any, Receive, Send], Awaitable[None]]

VARIABLE = "TWINKLE_TOKEN"
_access = logging.getLogger("twinkle.http.access")
_LEAST_CHARACTERS = 8
_ENDING = (400, 401, 413, 415)
"""Statuses after which the rest of a request is not read: the connection is closed."""


class RefusedError(Exception):
    """A request that is answered with an error; `kind` is a word that the client's code can compare."""

    def __init__(self, status: int, why: str, kind: str) -> None:
        super().__init__(why)
        self.status, self.why, self.kind = status, why, kind


def unknown(what: str, name: str) -> RefusedError:
    """The answer for ids that are unknown and for those of others."""
    return RefusedError(404, f"there is no {what} {name[:80]!a}", "Unknown")


def stops() -> RefusedError:
    """The answer to calls while the server drains."""
    return RefusedError(503, "the server stops, and takes no new calls", "Stopping")


def is_loopback(host: str) -> bool:
    """Whether a host name stands for this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_encrypted(what: str, host: str, encrypted: bool, insecure: bool, use: str) -> None:
    """Raise BackendError where the token would be sent in plain text to another machine; `use` says what to use."""
    if not (is_loopback(host) or encrypted or insecure):
        raise BackendError(f"{what} reaches beyond this machine, and the token would be sent in plain text: {use}")


class Tokens:
    """The tenants of a server, by their tokens.

    Args:
        token: One token, the token of each tenant, or a file of them; None takes that of TWINKLE_TOKEN, or makes one.

    Attributes:
        made: The token that was made; None if tokens were given.

    Raises:
        ValueError: A token is short, given twice, or not of ASCII characters that a header can hold.
    """

    def __init__(self, token: str | Mapping[str, str] | Path | None) -> None:
        token = tokens_of(token) if isinstance(token, Path) else token or os.environ.get(VARIABLE, "").strip() or None
        self.made = secrets.token_urlsafe(32) if token is None else None
        given = {"": self.made or token} if token is None or isinstance(token, str) else dict(token)
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


def tokens_of(path: str | Path) -> str | Mapping[str, str]:
    """The token of a file that others cannot read, or on its lines `tenant token` that of each tenant.

    Raises:
        ValueError: The file cannot be read, others can read it, or it holds no tokens.
    """
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(f"{path} has mode {mode:o}, so that others can read it: chmod 600 {path}")
        text = Path(path).read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) == 1 and len(lines[0]) == 1:
        return lines[0][0]
    if not lines or any(len(words) != 2 for words in lines) or len({words[0] for words in lines}) < len(lines):
        raise ValueError(f"{path} holds one token, or on each line a tenant's name and its token")
    return {words[0]: words[1] for words in lines}


class Gate:
    """An ASGI application before another one.

    Args:
        app: The application for accepted requests. `scope["state"]` has the tenant, the request's id, and its headers
            by name; a `RefusedError` that the application raises is answered.
        tokens: The tokens.
    """

    def __init__(self, app: App, tokens: Tokens) -> None:
        self._app, self._tokens = app, tokens
        self._prefix, self._count = secrets.token_hex(4), itertools.count(1)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request; 401 before anything of its body is read."""
        if scope["type"] != "http":
            return
        state = scope["state"]
        state["headers"], state["request"] = dict(scope["headers"]), f"{self._prefix}-{next(self._count)}"
        tenant = "" if scope["path"] == "/health" else self._tokens.tenant(state["headers"].get(b"authorization", b""))
        try:
            if tenant is None:
                raise RefusedError(401, "the token is not known here: send Authorization: Bearer <token>", "Token")
            state["tenant"] = tenant
            await self._app(scope, receive, send)
        except RefusedError as error:
            await _refuse(scope, send, error)


async def _refuse(scope: Any, send: Send, error: RefusedError) -> None:
    """Log a refused request, and answer it with JSON: the error's type and message, and the id of the request."""
    state = scope["state"]
    method, path = ascii(scope["method"])[1:-1], ascii(scope["path"][:200])
    text = "%s %s %s %d %s, request %s"
    _access.info(text, state.get("tenant") or "-", method, path, error.status, error.kind, state["request"])
    body = json.dumps({"error": {"type": error.kind, "message": error.why, "request": state["request"]}}).encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    if error.status in _ENDING:
        headers.append((b"connection", b"close"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def log_call(name: str, tenant: str, request: str, seconds: float, error: str = "") -> None:
    """Log a call that has ended; `error` is the type of its error, and empty without one."""
    outcome = f"failed with {ascii(error)[1:-1]}" if error else "done"
    _access.info("%s %s %s, %.4f s, request %s", tenant or "-", ascii(name)[1:-1], outcome, seconds, request)


async def read_body(scope: Any, receive: Receive, most: int) -> bytearray:
    """Read a body; waits for the client's bytes, and ends when they are there or the client is gone.

    Its memory grows as bytes arrive, so a claimed size takes none.

    Raises:
        RefusedError: It is too large or compressed, or the client went away.
    """
    headers, body, more = scope["state"]["headers"], bytearray(), True
    length = headers.get(b"content-length", b"0")
    too_large = RefusedError(413, f"a body has at most {most} bytes here", "TooLarge")
    if len(length) > 20 or int(length) > most:
        raise too_large
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RefusedError(415, "a body is not compressed here", "Coding")
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the client went away", "Gone")
        part, more = message.get("body", b""), message.get("more_body", False)
        if len(body) + len(part) > most:
            raise too_large
        body += part
    return body

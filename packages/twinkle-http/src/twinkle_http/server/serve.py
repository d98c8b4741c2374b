"""`serve`: the remote classes of a session for clients that hold a token; safe by default.

The server runs in a thread of this process until it is closed. SIGTERM drains it: no new calls are taken, those in
flight end, and the clients are informed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from twinkle_http.json_api import LEASES, JsonApi
from twinkle_http.loopback import is_loopback
from twinkle_http.messages import Limits
from twinkle_http.server.app import App
from twinkle_http.server.calls import Calls
from twinkle_http.server.clients import Clients
from twinkle_http.server.components import ServedClasses
from twinkle_http.server.gate import MOST_HEAD_BYTES, AccessLog, Auth, Gate
from twinkle_http.server.turn import in_own_thread
from twinkle_remote import Server
from twinkle_remote.backends.serving import DRAIN_SECONDS, running_session
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from twinkle_remote.backends.serving import ServeOptions

_log = logging.getLogger("twinkle.http")
_LAST_PORT = 65535
_START_SECONDS = 30.0
_TERMINATED = 143  # the convention of shells: 128 + the number of SIGTERM
LAST_UPDATE_SECONDS = 5.0


def serve(classes: Iterable[object], options: ServeOptions) -> HttpServer:
    """Serve remote classes of the running session: what `twinkle_remote.serve` calls."""
    _check(options)
    session = running_session()
    auth, served, log = Auth(options.token), ServedClasses(classes), AccessLog()
    limits = Limits(body=options.max_body, head=min(Limits().head, options.max_body))
    calls, clients = Calls(session, served, limits, log), Clients(options.lease)
    json = JsonApi(session, served, calls.components, clients, limits.head, log)
    app = App(session, calls, clients, limits, json.routes())
    sock = _bound(options.host, options.port)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    url = f"{'https' if options.tls else 'http'}://{shown}:{sock.getsockname()[1]}"
    server = HttpServer(app, calls, clients, json, _config(Gate(app, auth, log), options.tls), sock, url, auth.only())
    try:
        server.start()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error says why it did not start
            server.close(0.0)
        raise
    if auth.token is not None:
        print(f"twinkle serves at {server.address}, token: {auth.token}", file=sys.stderr, flush=True)
    return server


def _check(options: ServeOptions) -> None:
    host, port, tls = options.host, options.port, options.tls
    if type(port) is not int or not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port={port!r} must be from 0 to {_LAST_PORT}; 0 takes any free one")
    if not (is_loopback(host) or tls or options.insecure):
        raise BackendError(
            f"host={host!r} can be reached from other machines, and the token would be sent in plain text: give "
            "tls=(certificate, key), or insecure=True"
        )
    if tls is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
        except OSError as error:
            raise BackendError(f"tls={tls!r} cannot be used: {error.strerror or error}") from None
    if options.max_body < 1024 or not options.lease > 0:
        raise ValueError(
            f"max_body={options.max_body} is bytes, at or above 1024, and lease={options.lease} is seconds above 0"
        )


def _config(gate: Gate, tls: tuple[str, str] | None) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        http="h11",
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
        limit_concurrency=2000,
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=512)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else an answer of two writes waits for 40 ms
        return sock
    except OSError as error:
        raise BackendError(f"the server cannot listen at {host}:{port}: {error.strerror or error}") from None


class HttpServer(Server):
    """A server of the components of one session, in a thread with an event loop of its own."""

    def __init__(
        self,
        app: App,
        calls: Calls,
        clients: Clients,
        json: JsonApi,
        config: uvicorn.Config,
        sock: socket.socket,
        url: str,
        token: str,
    ) -> None:
        self.address, self.token = url, token
        self._app, self._calls, self._clients, self._json, self._sock = app, calls, clients, json, sock
        self._uvicorn = uvicorn.Server(config)
        self._closed, self._closing = threading.Event(), threading.Lock()
        self._before: Any = None
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="twinkle-http", daemon=True)

    def __repr__(self) -> str:
        return f"<Server at {self.address}{', closed' if self._closed.is_set() else ''}>"

    def start(self) -> None:
        """Start to answer; returns when it does."""
        self._thread.start()
        until = time.monotonic() + _START_SECONDS
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise BackendError(f"the server at {self.address} did not start")
            time.sleep(0.005)
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._terminate)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is closed; returns whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed.wait(0.5 if until is None else max(0.0, min(0.5, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def close(self, drain: float = DRAIN_SECONDS) -> None:
        """Take no new calls, wait for the calls in flight, inform the clients, and stop."""
        with self._closing:
            if self._closed.is_set():
                return
            self._app.draining = self._json.draining = True
            until = time.monotonic() + drain
            self._wait_until(until, lambda: not (self._calls.in_flight() or self._json.in_flight))
            until = min(until, time.monotonic() + LAST_UPDATE_SECONDS)
            self._wait_until(until, lambda: not any(client.unread() for client in self._clients.all()))
            self._uvicorn.should_exit = True
            self._thread.join(10.0)
            self._sock.close()
            for client in self._clients.all():
                self._clients.forget(client)
                self._calls.close(client)
            self._calls.ends.end()
            if threading.current_thread() is threading.main_thread() and self._before is not None:
                signal.signal(signal.SIGTERM, self._before)
            self._closed.set()

    def _wait_until(self, until: float, holds: Callable[[], bool]) -> None:
        while not holds() and time.monotonic() < until:
            time.sleep(0.02)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: drain, then go on as without this server; a forked process, such as a worker of a pool, ends."""
        if os.getpid() != self._owner:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self._closing.locked():  # in the middle of `close`, perhaps of this very thread
            return
        before = self._before
        self.close()
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            raise SystemExit(_TERMINATED)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        reaper = asyncio.ensure_future(self._reap())
        try:
            await self._uvicorn.serve(sockets=[self._sock])
        finally:
            reaper.cancel()

    async def _reap(self) -> None:
        """Release what clients held whose lease has ended."""
        lease = self._clients.lease
        while True:
            await asyncio.sleep(min(5.0, lease / 10))
            self._calls.ends.look_at_all()
            in_own_thread(lambda: self._json.release_idle(LEASES * lease), "twinkle-http-release")
            for client in self._clients.gone():
                _log.warning("the lease of a client has ended: its %d components are released", len(client.components))
                self._clients.forget(client)
                in_own_thread(partial(self._calls.close, client), "twinkle-http-release")

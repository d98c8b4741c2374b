"""The server of a session's components: safe by default, in a thread of this process until it is closed.

SIGTERM drains it: no new calls are taken, those in flight end, and the clients are informed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

from twinkle_http.gate import Gate, Tokens, check_encrypted
from twinkle_http.json_api import JsonApi
from twinkle_http.server.app import App
from twinkle_http.server.calls import Calls
from twinkle_http.server.clients import Clients
from twinkle_http.server.components import Components
from twinkle_remote import Server
from twinkle_remote.backends.support import running
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import FrameType

_log = logging.getLogger("twinkle.http")
_MOST_HEADER_BYTES = 64 * 1024
_START_SECONDS = 30.0
_TERMINATED = 143  # the convention of shells: 128 + the number of SIGTERM
LAST_UPDATE_SECONDS = 5.0


def _config(gate: Gate, tls: tuple[str, str] | None) -> uvicorn.Config:
    if tls is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
        except OSError as error:
            raise BackendError(f"tls={tls!r} cannot be used: {error.strerror or error}") from None
    return uvicorn.Config(
        gate,
        http="h11",
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
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
    """A server of the components of one session, in a thread with an event loop of its own; it runs when it is made.

    The arguments, and what is raised, are those of `twinkle_remote.serve`.
    """

    def __init__(
        self,
        classes: Iterable[object],
        *,
        host: str,
        port: int,
        token: str | Mapping[str, str] | Path | None,
        tls: tuple[str, str] | None,
        insecure: bool,
        max_body: int,
        lease: float,
    ) -> None:
        use = "give tls=(certificate, key), or insecure=True"
        check_encrypted(f"host={host!r}", host, tls is not None, insecure, use)
        tokens, session, components = Tokens(token), running(), Components(classes)
        groups = {name: group.num_workers for name, group in session.groups.items()}
        any_group = session.mode == "local" and not groups
        described = {"groups": groups, "any_group": any_group, "lease": lease, "max_body": max_body}
        self._clients = Clients(lease)
        self._calls = Calls(components, self._clients)
        json = JsonApi(list(groups), components, self._clients, self._calls)
        self._app = App(described, self._calls, self._clients, json, max_body)
        self._uvicorn = uvicorn.Server(_config(Gate(self._app, tokens), tls))
        self._sock = _bound(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if tls else 'http'}://{shown}:{self._sock.getsockname()[1]}"
        self.token = tokens.only()
        self._closed, self._closing = threading.Event(), threading.Lock()
        self._before: Any = None
        self._owner = os.getpid()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="twinkle-http", daemon=True)
        try:
            self._start()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error says why it did not start
                self.close(0.0)
            raise
        if tokens.made is not None:
            print(f"twinkle serves at {self.address}, token: {tokens.made}", file=sys.stderr, flush=True)

    def __repr__(self) -> str:
        return f"<Server at {self.address}{', closed' if self._closed.is_set() else ''}>"

    def _start(self) -> None:
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
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._closed.wait(max(0.0, min(0.5, until - time.monotonic()))):  # Ctrl-C comes between two waits
            if time.monotonic() >= until:
                return False
        return True

    def close(self, drain: float = 60.0) -> None:
        """Take no new calls, wait for the calls in flight, inform the clients, and stop."""
        with self._closing:
            if self._closed.is_set():
                return
            self._app.draining = True
            until = time.monotonic() + drain
            self._wait_until(until, lambda: not +self._clients.calls)
            until = min(until, time.monotonic() + LAST_UPDATE_SECONDS)
            self._wait_until(until, lambda: not any(client.unread() for client in self._clients.all()))
            self._uvicorn.should_exit = True
            self._thread.join()
            self._sock.close()
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
        elif not self._closing.locked():  # not in the middle of `close`, perhaps of this very thread
            self.close()
            if callable(self._before):
                self._before(number, frame)
            elif self._before is not signal.SIG_IGN:
                raise SystemExit(_TERMINATED)

    async def _serve(self) -> None:
        reaper = asyncio.ensure_future(self._reap())
        try:
            await self._uvicorn.serve(sockets=[self._sock])
        finally:
            reaper.cancel()
            for client in self._clients.all():
                await self._calls.close(client)

    async def _reap(self) -> None:
        """Release what clients held whose lease has ended."""
        closing: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(min(5.0, self._clients.lease / 10))
            for client in self._clients.all():
                if client.lease_ended():
                    count = len(client.components)
                    _log.warning("the lease of a client has ended: its %d components are released", count)
                    self._clients.forget(client)
                    closing.add(task := asyncio.ensure_future(self._calls.close(client)))
                    task.add_done_callback(closing.discard)

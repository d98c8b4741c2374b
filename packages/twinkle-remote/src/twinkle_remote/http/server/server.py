"""`serve`: the remote classes of a session for clients that hold a token; safe by default."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

from twinkle_remote.errors import BackendError
from twinkle_remote.http.loopback import is_loopback
from twinkle_remote.http.server.access import Access, own_hosts
from twinkle_remote.http.server.app import make_app
from twinkle_remote.http.server.calls import CallMaker
from twinkle_remote.http.server.clients import Clients
from twinkle_remote.http.server.components import ServedClasses
from twinkle_remote.http.server.gate import Gate
from twinkle_remote.http.server.pace import Connections
from twinkle_remote.http.server.service import Service
from twinkle_remote.http.server.watcher import Watcher
from twinkle_remote.http.wire.limits import Limits
from twinkle_remote.sessions.runtime import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType

    from twinkle_remote.sessions.runtime import Runtime

_log = logging.getLogger("twinkle.http")
_START_SECONDS = 30.0
_TERMINATED = 143  # the convention of shells: 128 + the number of SIGTERM
DRAIN_SECONDS = 60.0
MAX_BODY = 4 << 30


class Server:
    """A server that runs; a context manager that closes it.

    Attributes:
        address: Its URL.
        token: The token, if there is one for all; it was made if none was given.
    """

    def __init__(
        self, service: Service, watcher: Watcher, access: Access, config: uvicorn.Config, sock: socket.socket, url: str
    ) -> None:
        self.address = url
        self.token = access.only()
        self._service = service
        self._watcher = watcher
        self._sock = sock
        self._uvicorn = uvicorn.Server(config)
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self._before: Any = None
        self._thread = threading.Thread(target=self._run, name="twinkle-http", daemon=True)

    def __repr__(self) -> str:
        return f"<Server at {self.address}{', closed' if self._closed.is_set() else ''}>"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
        """Wait until it is closed; returns whether it is.

        Args:
            timeout: Seconds; None for no limit.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed.wait(0.5 if until is None else max(0.0, min(0.5, until - time.monotonic()))):
            if until is not None and time.monotonic() >= until:
                return False
        return True

    def close(self, drain: float = DRAIN_SECONDS) -> None:
        """Take no new calls, wait for those in flight, tell the clients, and stop; a second call does nothing.

        Args:
            drain: Seconds to wait for calls in flight.
        """
        with self._closing:
            if self._closed.is_set():
                return
            self._service.draining = True
            until = time.monotonic() + drain
            while self._watcher.pending() and time.monotonic() < until:
                time.sleep(0.02)
            self._uvicorn.should_exit = True
            self._thread.join(10.0)
            self._sock.close()
            self._watcher.end()
            for client in self._service.clients.all():
                self._service.close(client)
            self._service.maker.work.shutdown(wait=False)
            if threading.current_thread() is threading.main_thread() and self._before is not None:
                signal.signal(signal.SIGTERM, self._before)
            self._closed.set()

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: drain, then go on as without this server."""
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
        while True:
            await asyncio.sleep(min(5.0, self._service.clients.lease / 10))
            for client in self._service.clients.gone():
                _log.warning("the lease of a client has ended: its %d components are released", len(client.components))
                self._service.clients.forget(client)
                asyncio.get_running_loop().run_in_executor(self._service.maker.work, self._service.close, client)


def serve(
    classes: Iterable[type],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | Mapping[str, str] | None = None,
    tls: tuple[str, str] | None = None,
    max_body: int = MAX_BODY,
    lease: float = 60.0,
    insecure: bool = False,
    hosts: Iterable[str] = (),
) -> Server:
    """Serve remote classes of the running session over HTTP, in a thread of this process.

    Args:
        classes: Remote classes that clients may build and call; nothing else can be reached.
        host: Address to bind; beyond this machine only with `tls` or `insecure`.
        port: Port; 0 for any free one.
        token: The token that clients hold, or one for each tenant by name. None makes one and shows it once on
            standard error.
        tls: Files of the certificate and of its key.
        max_body: Bytes of one request, at or above 1024.
        lease: Seconds after which a client that was not heard of loses its components and results, above 0.
        insecure: Plain HTTP beyond this machine: whoever sees the traffic has the token.
        hosts: Further Host headers that are accepted, as of a proxy before the server.

    Returns:
        The server; it runs until it is closed.

    Raises:
        NotInitializedError: There is no session.
        BackendError: The address is beyond this machine, and there is neither `tls` nor `insecure`; or it is taken.
        ValueError: A token or another option is not valid.
        TypeError: A class is no remote class.
    """
    _check(host, tls, insecure, max_body, lease)
    runtime = running()
    access, served = Access(token), ServedClasses(classes)
    sock = _bound(host, port)
    bound = sock.getsockname()[1]
    service, watcher = _service(runtime, served, max_body, lease)
    connections = Connections()
    gate = Gate(make_app(service), access, own_hosts(host, bound, hosts), connections)
    config = _config(gate, connections, tls)
    shown = f"[{host}]" if ":" in host else host
    server = Server(service, watcher, access, config, sock, f"{'https' if tls else 'http'}://{shown}:{bound}")
    try:
        server.start()
    except BaseException:
        with contextlib.suppress(Exception):
            server.close(0.0)
        raise
    if access.token is not None:
        print(f"twinkle serves at {server.address}, token: {access.token}", file=sys.stderr, flush=True)
    return server


def _check(host: str, tls: tuple[str, str] | None, insecure: bool, max_body: int, lease: float) -> None:
    if not (is_loopback(host) or tls or insecure):
        raise BackendError(
            f"host={host!r} can be reached from other machines, and the token would travel in plain text: give "
            "tls=(certificate, key), or insecure=True"
        )
    if max_body < 1024 or not lease > 0:
        raise ValueError(f"max_body={max_body} is bytes, at or above 1024, and lease={lease} is seconds above 0")


def _service(runtime: Runtime, served: ServedClasses, max_body: int, lease: float) -> tuple[Service, Watcher]:
    limits = Limits(body=max_body, tree=min(Limits().tree, max_body))
    watcher = Watcher(runtime)
    maker, clients = CallMaker(runtime, served, watcher, limits), Clients(lease, secrets.token_hex(6))
    return Service(runtime, maker, clients, limits), watcher


def _config(gate: Gate, connections: Connections, tls: tuple[str, str] | None) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        http=connections.protocol(),
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

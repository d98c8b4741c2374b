"""Servers that are started anew, stop, or are stopped; clients that vanish; what a token may hold; and TLS."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trustme

from twinkle_remote import get, on, release, remote_class, remote_function, session, submit
from twinkle_remote.errors import BackendError, PlacementError, RemoteCallError, SessionLostError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

TOKEN = "a token for tests"
SERVER = """
    import asyncio, json, logging, sys, time, numpy
    from pathlib import Path
    from twinkle_http.server import clients
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, serve, session

    logging.basicConfig(stream=sys.stdout, format="%(message)s")

    @remote_class()
    class Gated:
        def __init__(self, guard: str = "") -> None:
            if guard == "bad":
                raise ValueError("a bad guard")
            if guard:
                print("building", flush=True)
                self.after(guard)

        @remote_function(dispatch="all", collect="first")
        def after(self, guard: str) -> str:
            until = time.monotonic() + 60.0
            while not Path(guard).exists() and time.monotonic() < until:
                time.sleep(0.01)
            return "done"

        @remote_function(dispatch="all", collect="first")
        def echo(self, value):
            return value

        @remote_function(dispatch="all", execute="first", collect="first")
        async def sleeps(self) -> None:
            print("sleeping", flush=True)
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                print("cancelled", flush=True)
                raise

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        options = json.loads(sys.argv[1])
        for name, most in options.pop("limits", {}).items():
            clients.LIMITS[name] = most, clients.LIMITS[name][1]
        with serve([Gated], token="a token for tests", **options) as server:
            print(server.address, flush=True)
            server.wait()
"""


@remote_class()
class Gated:
    def __init__(self, guard: str = "") -> None: ...

    @remote_function(dispatch="all", collect="first")
    def after(self, guard: str) -> str:
        return guard

    @remote_function(dispatch="all", collect="first")
    def echo(self, value: Any) -> Any:
        return value


class Running:
    """A server in a process of its own."""

    def __init__(self, **options: Any) -> None:
        command = [sys.executable, "-c", textwrap.dedent(SERVER), json.dumps(options)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.address = self.line("http://", "https://")

    def line(self, *starts: str) -> str:
        """The next line that starts so; a server that does not print it in time is killed."""
        assert self.process.stdout is not None
        limit = threading.Timer(60.0, self.process.kill)
        limit.start()
        try:
            for line in self.process.stdout:
                if line.startswith(starts):
                    return line.strip()
        finally:
            limit.cancel()
        raise AssertionError(f"the server ended without a line {starts}")

    def end(self) -> None:
        """Kill it."""
        with self.process:
            self.process.kill()


@contextmanager
def running(**options: Any) -> Iterator[Running]:
    server = Running(port=options.pop("port", 0), **options)
    try:
        yield server
    finally:
        server.end()


def gated() -> Gated:
    return on("two").create(Gated)


def until(condition: Callable[[], bool]) -> None:
    """Look again and again, for a while."""
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def hold(component: Gated, held: list[Any], value: Any) -> bool:
    """Make a result and keep it."""
    held.append(submit(component.echo, value))
    held[-1].wait()
    return False


def test_a_server_that_was_started_anew_says_so() -> None:
    with running() as first:
        port = int(first.address.rpartition(":")[2])
        with session("http", address=first.address, token=TOKEN):
            component = gated()
            assert component.echo(b"x") == b"x"
            first.end()
            with running(port=port), pytest.raises(SessionLostError, match="was restarted"):
                get(component.echo(b"x"))


def test_sigterm_ends_calls_in_flight_and_takes_no_new_ones(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    with running() as server, session("http", address=server.address, token=TOKEN):
        component = gated()
        lazy = submit(component.after, str(guard))
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(SessionLostError, match="the server stops"):
            until(lambda: submit(component.echo, b"x") is None)
        guard.touch()
        assert lazy == "done"
        assert server.process.wait(60) == 143


def test_a_client_that_was_stopped_for_its_lease_is_told(tmp_path: Path) -> None:
    program = """
        import sys, time
        from twinkle_remote import get, on, remote_class, remote_function, session
        from twinkle_remote.errors import SessionLostError

        @remote_class()
        class Gated:
            @remote_function(dispatch="all", collect="first")
            def echo(self, value): ...

        with session("http", address=sys.argv[1], token="a token for tests"):
            component = on("two").create(Gated)
            print("built", flush=True)
            sys.stdin.readline()
            try:
                get(component.echo(b"x"))
            except SessionLostError as error:
                print(error, flush=True)
    """
    with running(lease=1.5) as server:
        command = [sys.executable, "-c", textwrap.dedent(program), server.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            limit = threading.Timer(60.0, client.kill)
            limit.start()
            assert client.stdout.readline() == "built\n"
            client.send_signal(signal.SIGSTOP)
            assert "1 components are released" in server.line("the lease of a client has ended")
            client.send_signal(signal.SIGCONT)
            client.stdin.write("\n")
            client.stdin.flush()
            assert "the lease of this client has ended: it gave no sign of life for 1.5 s" in client.stdout.readline()
            limit.cancel()


def test_ctrl_c_of_a_client_cancels_at_the_server() -> None:
    program = """
        import sys
        from twinkle_remote import get, on, remote_class, remote_function, session

        @remote_class()
        class Gated:
            @remote_function(dispatch="all", collect="first")
            async def sleeps(self) -> None: ...

        with session("http", address=sys.argv[1], token="a token for tests"):
            get(on("two").create(Gated).sleeps())
    """
    with running() as server:
        command = [sys.executable, "-c", textwrap.dedent(program), server.address]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
            assert server.line("sleeping") == "sleeping"
            client.send_signal(signal.SIGINT)
            assert server.line("cancelled") == "cancelled"
            assert "KeyboardInterrupt" in client.communicate(timeout=60.0)[1]


KILLED = """
    import sys
    from twinkle_remote import get, on, remote_class, remote_function, session

    @remote_class()
    class Gated:
        def __init__(self, guard: str = "") -> None: ...

        @remote_function(dispatch="all", collect="first")
        async def sleeps(self) -> None: ...

    with session("http", address=sys.argv[1], token="a token for tests"):
        get(Gated(sys.argv[2], remote_group="two", instance_id="late").sleeps())
"""


def kill_client(server: Running, guard: str, when: str) -> None:
    """Start a client, and kill it when the server has printed a line."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), server.address, guard]
    with subprocess.Popen(command) as client:
        assert server.line(when) == when
        client.kill()


def test_the_calls_of_a_killed_client_are_cancelled() -> None:
    with running(lease=1.5) as server:
        kill_client(server, "", "sleeping")
        assert server.line("cancelled") == "cancelled"


def test_what_is_built_for_a_killed_client_is_released(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    with running(lease=1.5) as server:
        kill_client(server, str(guard), "building")
        assert server.line("the lease of a client has ended")
        guard.touch()
        with session("http", address=server.address, token=TOKEN):
            until(lambda: builds("late"))


def test_an_id_is_taken_while_its_component_is_built(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    kind: Any = Gated
    with running() as server, session("http", address=server.address, token=TOKEN):
        with ThreadPoolExecutor(1) as other:
            first = other.submit(kind, str(guard), remote_group="two", instance_id="same")
            assert server.line("building")
            with pytest.raises(PlacementError, match="instance_id='same' is taken on group 'two'"):
                kind(remote_group="two", instance_id="same")
            guard.touch()
            assert first.result(60.0).echo(b"x") == b"x"
        with pytest.raises(PlacementError, match="instance_id='same' is taken on group 'two'"):
            kind(remote_group="two", instance_id="same")
        release(first.result())
        with pytest.raises(RemoteCallError, match="a bad guard"):
            kind("bad", remote_group="two", instance_id="same")
        assert builds("same")


def builds(instance: str) -> bool:
    """Whether a name is free, and a component of it works."""
    try:
        kind: Any = Gated
        return bool(kind(remote_group="two", instance_id=instance).echo(b"x") == b"x")
    except PlacementError:
        return False


def test_a_server_that_does_not_answer_is_an_error_in_time() -> None:
    with running() as server, session("http", address=server.address, token=TOKEN, patience=3.0):
        component = gated()
        assert component.echo(b"x") == b"x"
        server.end()
        began = time.monotonic()
        with pytest.raises(SessionLostError, match="was not reached for 3 s"):
            get(component.echo(b"x"))
        assert time.monotonic() - began < 30.0


def test_tls(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = {name: str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem", "other.pem")}
    certificate.cert_chain_pems[0].write_to_path(files["cert.pem"])
    certificate.private_key_pem.write_to_path(files["key.pem"])
    authority.cert_pem.write_to_path(files["ca.pem"])
    other.cert_pem.write_to_path(files["other.pem"])
    with running(tls=[files["cert.pem"], files["key.pem"]]) as server:
        assert server.address.startswith("https://")
        with session("http", address=server.address, token=TOKEN, tls=files["ca.pem"]):
            value = bytes(range(256)) * 4000
            assert get(gated().echo(value)) == value
            array = np.random.default_rng(0).integers(0, 255, 5_000_001, np.uint8)
            assert np.array_equal(get(gated().echo(array)), array)
        for tls in (files["other.pem"], None):
            with (
                pytest.raises((BackendError, SessionLostError), match="certificate verify failed"),
                session("http", address=server.address, token=TOKEN, tls=tls, patience=2.0),
            ):
                pass
        host, port = server.address.removeprefix("https://").split(":")
        plain = socket.create_connection((host, int(port)), timeout=30.0)
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP/1.1 2" not in plain.recv(1000)
        plain.close()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(files["ca.pem"])
        with socket.create_connection((host, int(port)), timeout=30.0) as half:
            half.sendall(b"\x16\x03\x01")  # the begin of a handshake that never goes on
            with old.wrap_socket(
                socket.create_connection((host, int(port)), timeout=30.0), server_hostname=host
            ) as whole:
                assert whole.version() in ("TLSv1.2", "TLSv1.3")


def test_a_token_may_hold_so_much_and_no_more(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    limits = {"components": 2, "calls": 3, "results": 40}
    with running(limits=limits) as server, session("http", address=server.address, token=TOKEN):
        component, _ = gated(), gated()
        with pytest.raises(TwinkleError, match="this token may have 2 components"):
            gated()
        waiting = [submit(component.after, str(guard)) for _ in range(3)]
        with pytest.raises(TwinkleError, match="this token may have 3 calls in flight"):
            component.echo(b"x")
        guard.touch()
        assert get(waiting) == ["done"] * 3
        held: list[Any] = []
        waiting.clear()
        assert component.echo(b"x") == b"x"
        with pytest.raises(TwinkleError, match="this token may have 40 results"):
            until(lambda: hold(component, held, b"x"))
        assert 20 < len(held) <= 40
        held.clear()
        assert component.echo(b"x") == b"x"

"""Servers that are started anew, stop, or are stopped; clients that vanish; what a token may hold; and TLS."""

from __future__ import annotations

import json
import signal
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
from tests.http.raw import Raw, until

from twinkle_remote import get, on, release, remote_class, remote_function, session, submit
from twinkle_remote.errors import BackendError, PlacementError, RemoteCallError, SessionLostError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def hold(component: Gated, held: list[Any], value: Any) -> bool:
    """Make a result and keep it."""
    held.append(submit(component.echo, value))
    held[-1].wait()
    return False


def test_a_server_that_was_started_anew_says_so_and_one_that_is_gone_is_an_error_in_time() -> None:
    with running() as first, session("http", address=first.address, token=TOKEN):
        component = gated()
        assert component.echo(b"x") == b"x"
        first.end()
        with (
            running(port=int(first.address.rpartition(":")[2])),
            pytest.raises(SessionLostError, match="was restarted"),
        ):
            get(component.echo(b"x"))
    with running() as second, session("http", address=second.address, token=TOKEN, patience=3.0):
        component = gated()
        second.end()
        began = time.monotonic()
        with pytest.raises(SessionLostError, match="was not reached for 3 s"):
            get(component.echo(b"x"))
        assert time.monotonic() - began < 30.0


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


CLIENT = """
    import sys
    from twinkle_remote import get, on, remote_class, remote_function, session
    from twinkle_remote.errors import SessionLostError

    @remote_class()
    class Gated:
        def __init__(self, guard: str = "") -> None: ...

        @remote_function(dispatch="all", collect="first")
        def echo(self, value): ...

        @remote_function(dispatch="all", collect="first")
        async def sleeps(self) -> None: ...

    address, guard, method = sys.argv[1:]
    with session("http", address=address, token="a token for tests"):
        component = Gated(guard, remote_group="two", instance_id="late")
        if method == "sleeps":
            get(component.sleeps())
        print("built", flush=True)
        sys.stdin.readline()
        try:
            get(component.echo(b"x"))
        except SessionLostError as error:
            print(error, flush=True)
"""


@contextmanager
def client_of(server: Running, method: str = "sleeps", guard: str = "") -> Iterator[subprocess.Popen[str]]:
    """A client in a process of its own, with a component `late`."""
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), server.address, guard, method]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as client:
        limit = threading.Timer(60.0, client.kill)
        limit.start()
        try:
            yield client
        finally:
            limit.cancel()
            client.kill()


def test_a_client_that_went_away_loses_what_it_held(tmp_path: Path) -> None:
    """One that is interrupted, killed in a call, killed while its component is built, and one that is only stopped."""
    guard = tmp_path / "guard"
    with running(lease=1.5) as server:
        with client_of(server) as client:
            assert server.line("sleeping")
            client.send_signal(signal.SIGINT)
            assert server.line("cancelled")
            assert "KeyboardInterrupt" in client.communicate(timeout=60.0)[1]
        with client_of(server) as client:
            assert server.line("sleeping")
            client.kill()
            assert {server.line("cancelled", "the lease")[:9] for _ in range(2)} == {"cancelled", "the lease"}
        with client_of(server, guard=str(guard)) as client:
            assert server.line("building")
            client.kill()
            assert server.line("the lease of a client has ended")
            guard.touch()
        with session("http", address=server.address, token=TOKEN):
            until(lambda: builds("late"))
        with client_of(server, "echo") as client:
            assert client.stdin is not None and client.stdout is not None
            assert client.stdout.readline() == "built\n"
            client.send_signal(signal.SIGSTOP)
            assert "1 components are released" in server.line("the lease of a client has ended")
            client.send_signal(signal.SIGCONT)
            client.stdin.write("\n")
            client.stdin.flush()
            assert "the lease of this client has ended: it gave no sign of life for 1.5 s" in client.stdout.readline()


def test_a_component_of_json_that_nobody_calls_is_released() -> None:
    with running(lease=0.3) as server, ThreadPoolExecutor(1) as other:
        raw = Raw(server.address, TOKEN)
        idle, busy = raw.new("Gated"), raw.new("Gated")
        ended = other.submit(server.line, "the lease of a client has ended: its 1 components")
        until(lambda: raw.result(f"{busy}/echo", value=1) and ended.done())
        assert raw.error(f"{idle}/echo", {"value": 1})[:2] == (404, "Unknown")
        assert raw.result(f"{busy}/echo", value=1) == 1


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

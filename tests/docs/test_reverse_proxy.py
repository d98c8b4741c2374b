"""The reverse proxy of the page on deployment, where nginx is installed: clients work through it, also when it dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import trustme

from twinkle_mesh import DeviceMesh
from twinkle_remote import get, on, session, submit
from twinkle_remote.conformance.subjects.components import Counter
from twinkle_remote.conformance.subjects.coroutines import Maker
from twinkle_remote.conformance.subjects.echo import Echo

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
TOKEN = "a token for tests"
WAIT = 60.0
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session
    from twinkle_remote.conformance.subjects.components import Counter
    from twinkle_remote.conformance.subjects.echo import Echo
    from twinkle_remote.conformance.subjects.coroutines import Maker

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        with serve([Counter, Echo, Maker], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
AROUND = """
    daemon off;
    pid {folder}/nginx.pid;
    error_log stderr;
    worker_processes 1;
    events {{}}
    http {{
        access_log off;
        client_body_temp_path {folder}/body;
        proxy_temp_path {folder}/proxy;
        fastcgi_temp_path {folder}/fastcgi;
        uwsgi_temp_path {folder}/uwsgi;
        scgi_temp_path {folder}/scgi;
        {block}
    }}
"""


class Proxied(NamedTuple):
    """A server behind nginx.

    Attributes:
        address: URL of the proxy.
        authority: File with the certificate of its authority.
        folder: What it stores is here.
    """

    address: str
    authority: str
    folder: Path

    def workers(self) -> list[int]:
        """The processes that pass the requests on."""
        master = int((self.folder / "nginx.pid").read_text())
        children = Path(f"/proc/{master}/task/{master}/children").read_text()
        return [int(pid) for pid in children.split()]


@contextmanager
def program(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(300.0, process.kill)
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.terminate()
            process.wait(WAIT)


def configured(folder: Path, upstream: str, port: int) -> Path:
    """The file of a proxy, with the block of the page."""
    block = re.findall(r"^```nginx\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/models.pem", f"{folder}/models.pem"),
        ("/etc/ssl/models.key", f"{folder}/models.key"),
        ("http://127.0.0.1:8765", upstream),
    ):
        assert block.count(old) == 1, old
        block = block.replace(old, new)
    path = folder / "nginx.conf"
    path.write_text(textwrap.dedent(AROUND).format(folder=folder, block=block))
    return path


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "models.pem")
    certificate.private_key_pem.write_to_path(folder / "models.key")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with program(sys.executable, "-c", textwrap.dedent(SERVER), TOKEN) as server:
        assert server.stdout is not None
        path = configured(folder, server.stdout.readline().strip(), port)
        with program("nginx", "-p", str(folder), "-c", str(path)):
            until = time.monotonic() + WAIT
            while not listens(port):
                assert time.monotonic() < until
                time.sleep(0.05)
            yield Proxied(f"https://localhost:{port}", str(folder / "ca.pem"), folder)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def stored(proxied: Proxied) -> int:
    """Bytes of bodies that the proxy has on disk."""
    return sum(path.stat().st_size for name in ("body", "proxy") for path in (proxied.folder / name).rglob("*"))


needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx on this machine")


@needs_nginx
@pytest.mark.slow
def test_a_loop_and_large_values_go_through(proxied: Proxied) -> None:
    with session("http", address=proxied.address, token=TOKEN, tls=proxied.authority):
        counter = on("two").create(Counter)
        assert [int(get(counter.add())) for _ in range(50)] == list(range(1, 51))
        echo = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Echo)
        array = np.arange(64 << 17, dtype=np.uint64)
        lazy = submit(echo.rows, array)
        assert np.array_equal(get(lazy), array)
        assert stored(proxied) < 1 << 20, "the proxy passes bodies on as they come"


@needs_nginx
def test_items_come_when_they_are_made(proxied: Proxied, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with session("http", address=proxied.address, token=TOKEN, tls=proxied.authority):
        maker = on("two").create(Maker)
        items = iter(maker.first_then_waits(str(gate)))
        first = next(items)
        assert not gate.exists()
        gate.touch()
        assert [first, *items] == ["first", "second"]


@needs_nginx
def test_calls_run_once_when_the_proxy_is_killed(proxied: Proxied) -> None:
    with session("http", address=proxied.address, token=TOKEN, tls=proxied.authority):
        counter = on("two").create(Counter)
        for count in range(1, 61):
            if count % 20 == 10:
                for pid in proxied.workers():
                    os.kill(pid, signal.SIGKILL)
            assert get(counter.add()) == count


@needs_nginx
def test_plain_json_has_the_id_that_the_proxy_gave(proxied: Proxied) -> None:
    trusted = ssl.create_default_context(cafile=proxied.authority)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"{proxied.address}/v1/Counter", b"{}", headers)
    with urllib.request.urlopen(request, timeout=WAIT, context=trusted) as answer:
        assert json.loads(answer.read())["id"] and re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])

"""What workers print reaches the clients of a server with one token, and nobody where tenants have a token each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from twinkle_remote import get, on, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

SERVER = """
    import json, sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, serve, session
    from twinkle_remote.sessions.telemetry.worker_lines import worker_line

    @remote_class()
    class Speaker:
        @remote_function(dispatch="all", collect="first")
        def says(self, text):
            worker_line(f"[worker] {text}", False)  # as a backend of other processes does with what they print

    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        with serve([Speaker], port=0, token=json.loads(sys.argv[1]), lease=1.5) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@remote_class()
class Speaker:
    @remote_function(dispatch="all", collect="first")
    def says(self, text: str) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "is_shown"), [('"token-of-one"', True), ('{"one": "token-of-one", "two": "token-of-two"}', False)]
)
def test_only_the_clients_of_one_token_see_them(
    serving: Callable[..., AbstractContextManager[str]],
    tokens: str,
    is_shown: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen = ""
    with serving(SERVER, tokens) as address, session("http", address=address, token="token-of-one"):
        speaker = on("one").create(Speaker)
        until = time.monotonic() + (30.0 if is_shown else 2.0)
        while "[worker] a line" not in seen and time.monotonic() < until:
            get(speaker.says("a line"))
            time.sleep(0.02)  # a client asks for updates three times in a lease
            seen += "".join(capfd.readouterr())
    assert ("[worker] a line" in seen) is is_shown

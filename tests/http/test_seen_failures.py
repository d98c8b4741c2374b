"""A failure that a caller has seen is told once, whichever of two calls' answers the client reads first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, submit
from twinkle_remote.lazy.lazy import call_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

ROUNDS = 150
SERVER = """
    import sys
    from tests.http.test_seen_failures import Rows
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session

    sys.setswitchinterval(1e-4)
    with session("threads", groups=[DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]):
        with serve([Rows], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
TOKEN = "a token for tests"


@remote_class()
class Rows:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def fail(self, rows: list[int]) -> list[int]:
        raise KeyError(rows[0])

    @remote_function(dispatch="slice_dp", collect="flatten")
    def take(self, rows: list[int]) -> list[int]:
        return rows


@pytest.mark.slow
def test_a_failure_that_was_seen_is_told_once(
    serving: Callable[..., AbstractContextManager[str]], caplog: pytest.LogCaptureFixture
) -> None:
    groups = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]
    with serving(SERVER, TOKEN) as address:
        options: dict[str, Any] = {"address": address, "token": TOKEN}
        with session("http", groups=groups, **options):
            calls = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Rows)
            taker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Rows)
            for _ in range(ROUNDS):
                made = submit(calls.fail, [1, 2, 3, 4])
                with pytest.raises(KeyError):
                    get(taker.take(made.hand_over()))
                assert call_of(made).seen
    assert not caplog.messages

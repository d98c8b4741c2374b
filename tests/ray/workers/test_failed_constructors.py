"""What a constructor that failed leaves behind on the workers: nothing that the end of the session waits for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import json, sys, time
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Model:
        def __init__(self, how):
            rank = twinkle.current_worker().rank
            if how == "hang" and rank == 1:
                time.sleep(600)
            if how == "raise" and rank == 1:
                raise ValueError("no weights")
            if how == "raise":
                time.sleep(600)

    if __name__ == "__main__":
        how = sys.argv[1]
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], start_timeout=240)
        twinkle.sessions.current.running().backend.start_timeout = 3 if how == "hang" else 120
        kind = ""
        while not kind:
            try:
                Model(how, remote_group="actor")
            except (twinkle.TwinkleError, ValueError) as error:
                kind = type(error).__name__
        print("KIND", kind, flush=True)
        began = time.monotonic()
        twinkle.shutdown()
        print("SECONDS", json.dumps(time.monotonic() - began), flush=True)
"""
LOSSES = {"num_failures": -1, "req_failure_prob": 0, "resp_failure_prob": 15}
KINDS = {"hang": "CallTimeoutError", "raise": "ValueError", "lost": "ReplyLostError"}


@pytest.fixture(scope="module")
def running(joined_programs: Callable[..., Any]) -> dict[str, Any]:
    """A program for each way to fail: they wait for their limits beside each other."""
    faults = {"lost": {"RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": LOSSES})}}
    return {how: joined_programs(PROGRAM, how, **faults.get(how, {})) for how in KINDS}


@pytest.fixture(scope="module")
def told(running: dict[str, Any]) -> dict[str, tuple[str, float, str]]:
    """The kind of each failure, the seconds of the session's end, and what the program printed."""
    out = {}
    for how, one in running.items():
        kind = one.line("KIND ", 200)
        out[how] = (kind, float(one.line("SECONDS ", 60)), one.finish(30))
    return out


@pytest.mark.parametrize("how", KINDS)
def test_a_session_ends_soon_after_it(told: dict[str, tuple[str, float, str]], how: str) -> None:
    kind, seconds, out = told[how]
    assert kind == KINDS[how]
    assert seconds < 20
    assert "lost at" not in out and "results are lost" not in out and "no caller" not in out, out


@pytest.mark.usefixtures("told")
def test_nothing_is_left_of_them(running: dict[str, Any]) -> None:
    assert [one.left_over(10) for one in running.values()] == [[]] * len(KINDS)

"""The raylet of an own cluster dies under load: told in time, and nothing is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

PROGRAM = """
    import os, select, signal, time
    import numpy as np
    import twinkle_remote as twinkle
    from program_tools import raylets, report
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @twinkle.remote_class()
    class Maker:
        @twinkle.remote_function(dispatch="all")
        def make(self):
            return np.ones(500_000)

        @twinkle.remote_function(dispatch="all")
        def take(self, arrays):
            return 1

        @twinkle.remote_function(dispatch="all")
        def sleep(self, seconds):
            time.sleep(seconds)
            return 1

    def end(pid):  # a driver that is inside the object store when the raylet ends is ended by Ray
        gone = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([gone], [], [], 60)[0]

    MESH = DeviceMesh.from_sizes(dp_size=2)

    if __name__ == "__main__":
        twinkle.initialize("ray", groups=[DeviceGroup("maker", 2, "CPU"), DeviceGroup("other", 2, "CPU")])
        maker, other = (Maker(remote_group=name, device_mesh=MESH) for name in ("maker", "other"))
        made = maker.make()
        made.wait()
        busy = [maker.sleep(300.0), *(maker.make() for _ in range(20)), other.take(maker.make())]
        array = np.ones(500_000)
        end(*raylets())
        report("READ", lambda: len(made.result()))
        report("SENT", lambda: other.take(array).result())
        report("BUSY", lambda: busy[0].result())
        for lazy in busy[1:]:
            report("NEXT", lambda: lazy.wait())
        report("ENDED", twinkle.shutdown)
"""


def check_lost(answer: dict[str, Any], *parts: str, seconds: float) -> None:
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < seconds, answer
    missing = [part for part in (*parts, "\n  called from ", "program0.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_the_raylet_of_an_own_cluster(program: Callable[..., Any]) -> None:
    running = program(PROGRAM)
    raylet = "the raylet of this node (Ray's own process, "
    result = "the result of Maker.make on maker[0/2 dp=0] cannot be read: "
    check_lost(running.report("READ", 110), result + raylet, seconds=5)
    check_lost(running.report("SENT", 110), "Maker.take was not sent to 'other': " + raylet, seconds=5)
    check_lost(running.report("BUSY", 110), "Maker.sleep", "maker[", "died during", "raylet", seconds=15)
    for _ in range(21):
        check_lost(running.report("NEXT", 110), "died during Maker.", seconds=5)
    ended = running.report("ENDED", 110)
    assert ended["kind"] in ("", "WorkerDiedError") and ended["seconds"] < 20, ended
    running.finish(30)
    assert running.left_over(10) == []

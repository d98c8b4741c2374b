"""The raylet's death under load, of an own cluster's and of another node's: told in time, and nothing is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray
BOUND = 20  # Ray is told of a lost node by its health checks, within 15 s as they are set for clusters of our own

HEAD = """
    import os, select, signal, time
    import numpy as np
    import twinkle_remote as twinkle
    from program_tools import raylets, report, start_cluster
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
"""

OWN = (
    HEAD
    + """
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
)

FAR = (
    HEAD
    + """
    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=2)
        cluster.add_node(num_cpus=0, resources={"far": 2}, node_ip_address="127.0.0.2")
        groups = [DeviceGroup("near", 2, "CPU"), DeviceGroup("maker", 2, "far")]
        twinkle.initialize("ray", groups=groups, address=cluster.address)
        near, maker = (Maker(remote_group=name, device_mesh=MESH) for name in ("near", "maker"))
        made = maker.make()
        made.wait()
        busy = [maker.sleep(300.0), *(maker.make() for _ in range(20)), near.take(maker.make())]
        array = np.ones(500_000)
        end(*raylets("127.0.0.2"))
        report("READ", lambda: len(made.result()))
        report("BUSY", lambda: busy[0].result())
        for lazy in busy[1:]:
            report("NEXT", lambda: lazy.wait())
        report("NEAR", lambda: near.take(array).result())
        report("ENDED", twinkle.shutdown)
        cluster.shutdown()
"""
)


def check_lost(answer: dict[str, Any], *parts: str, seconds: float = BOUND) -> None:
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < seconds, answer
    missing = [part for part in (*parts, "\n  called from ", "program0.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_the_raylet_of_an_own_cluster(program: Callable[..., Any]) -> None:
    running = program(OWN)
    raylet = "the raylet of this node (Ray's own process, "
    result = "the result of Maker.make on maker[0/2 dp=0] cannot be read: "
    check_lost(running.report("READ", 110), result + raylet, seconds=5)
    check_lost(running.report("SENT", 110), "Maker.take was not sent to 'other': " + raylet, seconds=5)
    check_lost(running.report("BUSY", 110), "Maker.sleep", "maker[", "died during", "raylet")
    for _ in range(21):
        check_lost(running.report("NEXT", 110), "died during Maker.", seconds=5)
    ended = running.report("ENDED", 110)
    assert ended["kind"] in ("", "WorkerDiedError") and ended["seconds"] < 20, ended
    running.finish(30)
    assert running.left_over(10) == []


def test_the_raylet_of_another_node(program: Callable[..., Any]) -> None:
    running = program(FAR)
    check_lost(running.report("READ", 110), "the result of Maker.make on maker[0/2 dp=0] cannot be read: ")
    check_lost(running.report("BUSY", 110), "died during Maker.sleep", "maker[", "node")
    for _ in range(21):
        check_lost(running.report("NEXT", 110), "died during Maker.", seconds=5)
    assert running.report("NEAR", 110)["value"] == [1, 1]
    ended = running.report("ENDED", 110)
    assert ended["kind"] in ("", "WorkerDiedError") and ended["seconds"] < 20, ended
    running.finish(60)
    assert running.left_over(10) == []

"""The raylet's death under load, of an own cluster's and of another node's: told in time, and nothing is left over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray
BOUND = 20  # Ray is told of a lost node by its health checks, within 15 s as they are set for clusters of our own

HEAD = """
    import json, os, select, signal, sys, time
    import numpy as np
    import ray
    import twinkle_remote as twinkle
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

    def tell(name, function):
        began = time.monotonic()
        try:
            value, kind, text = function(), "", ""
        except twinkle.TwinkleError as error:
            value, kind, text = None, type(error).__name__, str(error)
        seconds = time.monotonic() - began
        print(name, json.dumps({"value": value, "kind": kind, "text": text, "seconds": seconds}), flush=True)

    def raylet(address):
        (name,) = [node["RayletSocketName"] for node in ray.nodes() if address in (None, node["NodeManagerAddress"])]
        wanted = f"--raylet_socket_name={name}".encode()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if wanted in open(f"/proc/{entry}/cmdline", "rb").read():
                    return int(entry)
            except OSError:
                continue

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
        end(raylet(None))
        tell("READ", lambda: len(made.result()))
        tell("SENT", lambda: other.take(array).result())
        tell("BUSY", lambda: busy[0].result())
        for lazy in busy[1:]:
            tell("NEXT", lambda: lazy.wait())
        tell("ENDED", twinkle.shutdown)
"""
)

FAR = (
    HEAD
    + """
    if __name__ == "__main__":
        from ray.cluster_utils import Cluster
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        cluster.add_node(num_cpus=0, resources={"far": 2}, node_ip_address="127.0.0.2")
        groups = [DeviceGroup("near", 2, "CPU"), DeviceGroup("maker", 2, "far")]
        twinkle.initialize("ray", groups=groups, address=cluster.address)
        near, maker = (Maker(remote_group=name, device_mesh=MESH) for name in ("near", "maker"))
        made = maker.make()
        made.wait()
        busy = [maker.sleep(300.0), *(maker.make() for _ in range(20)), near.take(maker.make())]
        array = np.ones(500_000)
        end(raylet("127.0.0.2"))
        tell("READ", lambda: len(made.result()))
        tell("BUSY", lambda: busy[0].result())
        for lazy in busy[1:]:
            tell("NEXT", lambda: lazy.wait())
        tell("NEAR", lambda: near.take(array).result())
        tell("ENDED", twinkle.shutdown)
        cluster.shutdown()
"""
)


def told(running: Any, name: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(running.line(name, 110))
    return line


def check_lost(answer: dict[str, Any], *parts: str, seconds: float = BOUND) -> None:
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < seconds, answer
    missing = [part for part in (*parts, "\n  called from ", "program0.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_the_raylet_of_an_own_cluster(program: Callable[..., Any]) -> None:
    running = program(OWN)
    raylet = "the raylet of this node (Ray's own process, "
    result = "the result of Maker.make on maker[0/2 dp=0] cannot be read: "
    check_lost(told(running, "READ"), result + raylet, seconds=5)
    check_lost(told(running, "SENT"), "Maker.take was not sent to 'other': " + raylet, seconds=5)
    check_lost(told(running, "BUSY"), "Maker.sleep", "maker[", "died during", "raylet")
    for _ in range(21):
        check_lost(told(running, "NEXT"), "died during Maker.", seconds=5)
    ended = told(running, "ENDED")
    assert ended["kind"] in ("", "WorkerDiedError") and ended["seconds"] < 20, ended
    running.finish(30)
    assert running.left_over(10) == []


def test_the_raylet_of_another_node(program: Callable[..., Any]) -> None:
    running = program(FAR)
    check_lost(told(running, "READ"), "the result of Maker.make on maker[0/2 dp=0] cannot be read: ")
    check_lost(told(running, "BUSY"), "died during Maker.sleep", "maker[", "node")
    for _ in range(21):
        check_lost(told(running, "NEXT"), "died during Maker.", seconds=5)
    assert told(running, "NEAR")["value"] == [1, 1]
    ended = told(running, "ENDED")
    assert ended["kind"] in ("", "WorkerDiedError") and ended["seconds"] < 20, ended
    running.finish(60)
    assert running.left_over(10) == []

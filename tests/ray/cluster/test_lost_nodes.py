"""Nodes of a joined cluster whose Ray ends, and that come back: an error in time, and the rest goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]
BOUND = 60  # Ray is told of a lost node by its health checks

PROGRAM = """
    import os, select, signal, time
    import numpy as np
    import ray
    import twinkle_remote as twinkle
    from program_tools import raylets, report, start_cluster
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_ray import restart

    MESH = DeviceMesh.from_sizes(dp_size=2)

    @twinkle.remote_class()
    class Maker:
        @twinkle.remote_function(dispatch="all", collect="none")
        def pids(self):
            return os.getpid()

        @twinkle.remote_function(dispatch="all", collect="none")
        def nodes(self):
            return ray.get_runtime_context().get_node_id()

        @twinkle.remote_function(dispatch="all")
        def make(self):
            return np.ones(100_000)  # larger ones of this host are read without its raylet

        @twinkle.remote_function(dispatch="all")
        def take(self, arrays):
            return 1

        @twinkle.remote_function(dispatch="all")
        def sleep(self, seconds):
            time.sleep(seconds)
            return 1

    def start(**groups):
        made = [DeviceGroup(name, 2, kind) for name, kind in groups.items()]
        more = {"colocate": [tuple(groups)]} if "actor" in groups else {}
        twinkle.initialize("ray", groups=made, address=cluster.address, restart="group", **more)
        return [Maker(remote_group=name, device_mesh=MESH) for name in groups]

    def end(pid):  # a driver that is inside the object store when the raylet ends is ended by Ray
        gone = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([gone], [], [], 60)[0]

    def have_ended(workers):
        return all(select.select([worker], [], [], 30)[0] for worker in workers)

    def colocated(room):
        actor, sampler = start(actor="room", sampler="room")
        before = [actor.nodes().result(), sampler.nodes().result()]
        restart("actor")
        report("KEPT", lambda: [before, [actor.nodes().result(), sampler.nodes().result()]])
        cluster.remove_node(room)
        report("APART", lambda: restart("actor"))
        report("LOST_END", twinkle.shutdown)

    def is_lost(near, maker):
        workers = [os.pidfd_open(pid) for pid in maker.pids().result()]
        made = maker.make()
        made.wait()
        busy = [maker.sleep(300.0), *(maker.make() for _ in range(20)), near.take(maker.make())]
        array = np.ones(500_000)
        end(*raylets("127.0.0.2"))
        report("READ", lambda: len(made.result()))
        report("BUSY", lambda: busy[0].result())
        for number, lazy in enumerate(busy[1:]):
            report(f"NEXT_{number}", lambda: lazy.wait())
        report("OTHER", lambda: near.take(array).result())
        report("NO_ROOM", lambda: restart("maker"))
        report("GONE", lambda: have_ended(workers))
        cluster.add_node(num_cpus=0, resources={"far": 2})
        report("RESTART", lambda: restart("maker"))
        report("AFTER", lambda: maker.sleep(0.0).result())

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=2)
        room = cluster.add_node(num_cpus=0, resources={"room": 3}, node_ip_address="127.0.0.3")
        cluster.add_node(num_cpus=0, resources={"far": 2, "room": 3}, node_ip_address="127.0.0.2")
        colocated(room)
        is_lost(*start(near="CPU", maker="far"))
        report("END", twinkle.shutdown)
        cluster.shutdown()
"""
NEXT = tuple(f"NEXT_{number}" for number in range(21))
REPORTS = (
    *("KEPT", "APART", "LOST_END", "READ", "BUSY"),
    *(*NEXT, "OTHER", "NO_ROOM", "GONE", "RESTART", "AFTER", "END"),
)


@pytest.fixture(scope="module")
def told(programs: Callable[..., Any]) -> dict[str, Any]:
    """What the program reported, by name."""
    running = programs(PROGRAM)
    out = {name: running.report(f"{name} ", 110) for name in REPORTS}
    running.finish(60)
    return out


def check_lost(answer: dict[str, Any], *parts: str, seconds: float = BOUND) -> None:
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < seconds, answer
    missing = [part for part in (*parts, "\n  called from ", "program0.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_a_colocated_group_keeps_its_nodes_where_one_node_has_room_for_all_of_it(told: dict[str, Any]) -> None:
    before, after = told["KEPT"]["value"]
    assert before == after and before[0] == before[1] and len(set(before[0])) == 2


def test_a_colocated_group_whose_node_is_lost_is_an_error_that_says_what_would_do(told: dict[str, Any]) -> None:
    assert told["APART"]["kind"] == "PlacementError", told["APART"]
    assert told["APART"]["text"].startswith(
        "group 'actor' cannot be restarted alone: colocate places it on the nodes of 'sampler', and "
    )
    assert told["APART"]["text"].endswith("is lost; shutdown() and initialize() place them together anew")
    assert told["LOST_END"]["kind"] in ("", "WorkerDiedError") and told["LOST_END"]["seconds"] < BOUND, told["LOST_END"]


def test_a_lost_node_is_told_and_the_rest_goes_on(told: dict[str, Any]) -> None:
    check_lost(told["READ"], "the result of Maker.make on maker[0/2 dp=0] cannot be read: ")
    check_lost(told["BUSY"], "died during Maker.sleep", "maker[", "node")
    for name in NEXT:
        check_lost(told[name], "died during Maker.", seconds=20)
    assert told["OTHER"]["value"] == [1, 1] and told["GONE"]["value"] is True


def test_a_group_of_a_lost_node_comes_back_when_there_is_room(told: dict[str, Any]) -> None:
    assert "infeasible" in told["NO_ROOM"]["text"], told["NO_ROOM"]
    assert told["RESTART"]["kind"] == "" and told["AFTER"]["value"] == [1, 1]
    assert told["END"]["kind"] == "", told["END"]

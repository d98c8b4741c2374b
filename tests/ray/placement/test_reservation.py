"""Devices, ranks and nodes on a cluster of several nodes, whose GPUs are names and numbers only."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import json, os, sys
    import ray
    from program_tools import start_cluster
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh

    NAMES = (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "MASTER_PORT"),
        *("OMP_NUM_THREADS", "TWINKLE_LOCAL_RANK", "TWINKLE_DEVICE_TYPE"),
    )

    @twinkle.remote_class()
    class Probe:
        @twinkle.remote_function(dispatch="all", collect=lambda results, mesh: results)
        def look(self):
            node = ray.get_runtime_context().get_node_id()
            return {**{name: os.environ.get(name) for name in NAMES}, "node": node, "pid": os.getpid()}

    held = []

    def hold_or_free():
        if held:
            ray.util.remove_placement_group(held.pop())
        else:
            held.append(ray.util.placement_group([{"GPU": 4}, {"GPU": 2}]))
            assert held[0].wait(30)
        own = [group.id.hex() for group in held]
        table = ray.util.placement_group_table()
        return sorted({table[name]["state"] for name in table if name not in own})

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=2, num_gpus=4)
        os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"  # this node is given some of its host's devices
        cluster.add_node(num_cpus=1, num_gpus=2, resources={"accel": 2})
        del os.environ["CUDA_VISIBLE_DEVICES"]
        ray.init(address=cluster.address, logging_level="ERROR")
        order = {cluster.head_node.node_id: 0}
        print("READY", flush=True)
        for line in sys.stdin:
            seconds, *asked = json.loads(line)
            groups = [DeviceGroup(**one) for one in asked]
            if not groups:
                print("HELD", json.dumps(hold_or_free()), flush=True)
                continue
            try:
                with twinkle.session("ray", groups=groups, lazy_collect=False, placement_timeout=seconds):
                    seen = {group.name: Probe(remote_group=group.name).look() for group in groups}
                    first = Probe(remote_group=groups[0].name).look()
                    assert [one["pid"] for one in first] == [one["pid"] for one in seen[groups[0].name]]
                for rows in seen.values():
                    for row in rows:
                        row["node"] = order.get(row["node"], 1)
                print("SEEN", json.dumps(seen), flush=True)
            except twinkle.TwinkleError as error:
                print("SEEN", json.dumps(str(error)), flush=True)
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.fixture(scope="module")
def cluster(programs: Callable[..., Any]) -> Any:
    running = programs(PROGRAM)
    running.line("READY", 110)
    return running


def look(cluster: Any, *groups: dict[str, Any]) -> Any:
    cluster.say(json.dumps([60, *groups]))
    seen = json.loads(cluster.line("SEEN", 60))
    assert isinstance(seen, dict), seen
    return seen


def refusal(cluster: Any, *groups: dict[str, Any], seconds: float = 60) -> str:
    cluster.say(json.dumps([seconds, *groups]))
    told = json.loads(cluster.line("SEEN", 60))
    assert isinstance(told, str)
    return told


def hold_or_free(cluster: Any) -> list[str]:
    """Hold all GPUs from outside of sessions, or free them: the states of all other reservations."""
    cluster.say("[0]")
    states: list[str] = json.loads(cluster.line("HELD", 60))
    return states


def gpu(name: str, ranks: int | list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "ranks": ranks, "device_type": "GPU", **more}


def places(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["node"], row["CUDA_VISIBLE_DEVICES"]) for row in rows]


def test_what_cannot_be_is_said_and_given_back_and_ranks_go_by_node_and_device_on_unequal_nodes(cluster: Any) -> None:
    told = refusal(cluster, gpu("a", 4), gpu("b", 3))
    assert "infeasible: group 'b' asks for 3 workers x 1 GPU, and no nodes hold them" in told
    assert "#" in told  # nodes of one name are told apart
    told = refusal(cluster, gpu("a", [7]))
    assert "names GPU [7], and the cluster has 6, counted from 0" in told
    seen = look(cluster, gpu("all", 6))["all"]
    assert places(seen) == [(0, "0"), (0, "1"), (0, "2"), (0, "3"), (1, "4"), (1, "5")]
    assert [row["RANK"] for row in seen] == list("012345")
    assert [row["TWINKLE_LOCAL_RANK"] for row in seen] == list("012301")
    for row in seen:  # a library takes it for the index among the devices that it sees
        assert int(row["LOCAL_RANK"]) < len(row["CUDA_VISIBLE_DEVICES"].split(","))
    cores = len(os.sched_getaffinity(0))
    assert [row["OMP_NUM_THREADS"] for row in seen] == [str(max(1, cores // of)) for of in (4, 4, 4, 4, 2, 2)]
    assert [row["LOCAL_WORLD_SIZE"] for row in seen] == list("444422")
    assert {row["WORLD_SIZE"] for row in seen} == {"6"}
    assert len({row["MASTER_PORT"] for row in seen}) == 1


def test_a_group_is_on_as_many_nodes_as_it_asks_for(cluster: Any) -> None:
    seen = look(cluster, gpu("apart", 2, nodes=2))["apart"]
    assert [node for node, _ in places(seen)] == [0, 1]
    assert [row["LOCAL_WORLD_SIZE"] for row in seen] == ["1", "1"]
    told = refusal(cluster, gpu("apart", 6, nodes=3))
    assert "'apart' asks for 6 workers x 1 GPU on 3 nodes, and no nodes hold them" in told


def test_devices_that_others_hold_are_busy_and_nothing_stays_reserved(cluster: Any) -> None:
    began = time.monotonic()
    assert "infeasible: " in refusal(cluster, {"name": "a", "ranks": 2, "device_type": "CPU"}, gpu("b", 7))
    assert time.monotonic() - began < 30
    assert set(hold_or_free(cluster)) <= {"REMOVED"}
    began = time.monotonic()
    told = refusal(cluster, gpu("b", 2), seconds=2)
    assert time.monotonic() - began < 30
    assert "within 2 s; busy:" in told and "0 of 4 GPU free" in told and "0 of 2 GPU free" in told
    assert hold_or_free(cluster) == ["REMOVED"]
    assert len(look(cluster, gpu("b", 2))["b"]) == 2
    assert hold_or_free(cluster) == hold_or_free(cluster) == ["REMOVED"]


def test_groups_share_nodes_and_never_devices(cluster: Any) -> None:
    cpu = {"name": "cpu", "ranks": 2, "device_type": "CPU"}
    seen = look(cluster, gpu("a", 3), gpu("b", 1), gpu("c", 2), cpu)
    assert places(seen["c"]) == [(1, "4"), (1, "5")]
    assert len({*places(seen["a"]), *places(seen["b"])}) == 4
    assert {node for node, _ in places(seen["a"])} == {0}
    assert {row["CUDA_VISIBLE_DEVICES"] for row in seen["cpu"]} == {""}
    assert [row["LOCAL_RANK"] for row in seen["cpu"]] == [row["TWINKLE_LOCAL_RANK"] for row in seen["cpu"]]
    assert {row["OMP_NUM_THREADS"] for row in seen["cpu"]} == {"1"}
    assert [row["TWINKLE_DEVICE_TYPE"] for row in (seen["a"][0], seen["cpu"][0])] == ["GPU", "CPU"]


def test_a_worker_can_have_several_devices(cluster: Any) -> None:
    seen = look(cluster, gpu("pairs", 6, gpus_per_worker=2))["pairs"]
    assert [(node, sorted(devices.split(","))) for node, devices in places(seen)] == [
        (0, ["0", "1"]),
        (0, ["2", "3"]),
        (1, ["4", "5"]),
    ]
    assert [row["LOCAL_RANK"] for row in seen] == ["0"] * 3
    assert [row["TWINKLE_LOCAL_RANK"] for row in seen] == ["0", "1", "0"]


def test_named_devices_are_the_ones(cluster: Any) -> None:
    seen = look(cluster, gpu("a", [5, 3]), gpu("b", 2, visible_devices="0,4"), gpu("c", 2))
    assert places(seen["a"]) == [(0, "3"), (1, "5")]
    assert places(seen["b"]) == [(0, "0"), (1, "4")]
    assert places(seen["c"]) == [(0, "1"), (0, "2")]


def test_custom_resources(cluster: Any) -> None:
    seen = look(cluster, {"name": "a", "ranks": 2, "device_type": "accel"})["a"]
    assert [(row["node"], row["RANK"]) for row in seen] == [(1, "0"), (1, "1")]
    told = refusal(cluster, {"name": "a", "ranks": [0], "device_type": "accel"})
    assert "accel are not numbered" in told and "give ranks as a count" in told

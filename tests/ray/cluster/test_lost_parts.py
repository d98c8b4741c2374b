"""Parts of tables that are lost with a node of the cluster: errors that name them, and rows of streams made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import os, select, signal, sys, time
    import numpy as np
    import ray
    import twinkle_remote as twinkle
    from program_tools import raylets, report, start_cluster
    from twinkle_mesh import DeviceGroup, DeviceMesh

    MESH = DeviceMesh.from_sizes(dp_size=2)
    ROWS = 24

    @twinkle.remote_class()
    class Stage:
        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows):
            time.sleep(0.2 if len(rows) == 1 else 0)
            return {"ids": rows, "wide": np.repeat(np.asarray(rows, dtype=np.float64), 100_000).reshape(len(rows), -1)}

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
        def grade(self, rows):
            return {**rows, "score": [2 * one for one in rows["ids"]]}

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten", reads="score")
        def scores(self, rows):
            return list(rows["score"])

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten", reads=("score", "wide"))
        def train(self, rows):
            return [float(wide[0]) + score for wide, score in zip(rows["wide"], rows["score"])]

    def lose(address):
        for pid in raylets(address):
            gone = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            assert select.select([gone], [], [], 60)[0]
        while any(node["Alive"] for node in ray.nodes() if node["NodeManagerAddress"] == address):
            time.sleep(0.2)

    def tables():
        groups = [DeviceGroup("far", 2, "far"), DeviceGroup("near", 2, "CPU")]
        with twinkle.session("ray", groups=groups, address=cluster.address):
            far, near = Stage(remote_group="far", device_mesh=MESH), Stage(remote_group="near", device_mesh=MESH)
            here = near.make([7, 8])
            graded = near.grade(far.make([0, 1, 2, 3]))
            twinkle.get(near.train(graded))
            twinkle.get(near.scores(near.grade(here)))
            lose("127.0.0.2")
            read = lambda lazy: [float(one) for one in twinkle.get(lazy)]
            report("TRAINED", lambda: read(near.train(graded)))
            report("TAKEN", lambda: read(near.train(twinkle.take(graded, [3, 0]))))
            report("MIXED", lambda: read(near.train(twinkle.concat([near.grade(here), graded]))))
            report("FETCHED", lambda: len(twinkle.get(graded)))
            report("OTHER_ROWS", lambda: read(near.train(twinkle.take(near.grade(here), [1, 0]))))
            report("ADDED", lambda: list(twinkle.get(near.scores(graded))))
            report("SELECTED", lambda: list(twinkle.get(twinkle.select(graded, "score"))["score"]))

    def stream():
        groups = [DeviceGroup("both", 2, "both"), DeviceGroup("near", 2, "CPU")]
        with twinkle.session("ray", groups=groups, address=cluster.address):
            both, near = Stage(remote_group="both", device_mesh=MESH), Stage(remote_group="near", device_mesh=MESH)
            source, seen = [[row] for row in range(ROWS)], []
            with twinkle.stream(source, both.make, near.grade, ahead=8, chunk=1) as batches:
                for number, batch in enumerate(batches):
                    value = twinkle.get(batch)
                    assert value["score"] == [2 * one for one in value["ids"]]
                    assert value["wide"][0, 0] == value["ids"][0]
                    seen += value["ids"]
                    if number == 3:
                        lose("127.0.0.3")
                        time.sleep(2)
                report("STREAMED", lambda: {"seen": seen, "redone": batches.stats().redone})

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=2, resources={"both": 1})
        cluster.add_node(num_cpus=0, resources={"far": 2}, node_ip_address="127.0.0.2")
        cluster.add_node(num_cpus=0, resources={"both": 1}, node_ip_address="127.0.0.3")
        tables()
        stream()
        sys.stdout.flush()
        cluster.shutdown()
"""
READS = ("TRAINED", "TAKEN", "MIXED", "FETCHED", "OTHER_ROWS", "ADDED", "SELECTED", "STREAMED")


@pytest.fixture(scope="module")
def told(programs: Callable[..., Any]) -> dict[str, Any]:
    """What the program reported, by name."""
    running = programs(PROGRAM)
    out = {name: running.report(f"{name} ", 110) for name in READS}
    running.finish(60)
    return out


@pytest.mark.parametrize("name", ["TRAINED", "TAKEN", "MIXED", "FETCHED", "ADDED", "SELECTED"])
def test_rows_of_a_lost_node_are_an_error_that_names_their_worker(told: dict[str, Any], name: str) -> None:
    answer = told[name]
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < 30, answer
    missing = [part for part in ("far[", "called from ", "program0.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_rows_of_other_nodes_are_read_as_before(told: dict[str, Any]) -> None:
    assert told["OTHER_ROWS"]["value"] == [24.0, 21.0], told["OTHER_ROWS"]


def test_rows_of_a_stream_are_made_again(told: dict[str, Any]) -> None:
    streamed = told["STREAMED"]["value"]
    assert streamed["seen"] == list(range(24)), told["STREAMED"]
    assert streamed["redone"] >= 1

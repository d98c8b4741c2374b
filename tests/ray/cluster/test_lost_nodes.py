"""Nodes of a joined cluster that are stopped, lost and come back, at last its head: told in time, the rest goes on.

One program on one cluster, and beside it one on another for tables, whose parts are lost: most of the time both wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]
BOUND = 20  # Ray is told of a lost node by its health checks

PROGRAM = """
    import os, select, signal, sys, threading, time
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

        @twinkle.remote_function(dispatch="all", timeout=4)
        def make_soon(self):
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

    def send(pids, number):
        for pid in pids:
            os.kill(pid, number)

    def end(pid):  # a driver that is inside the object store when the raylet ends is ended by Ray
        gone = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([gone], [], [], 60)[0]

    def have_ended(workers):
        return all(select.select([worker], [], [], 30)[0] for worker in workers)

    def own_raylet_stops():
        (maker,) = start(maker="CPU")
        workers = [os.pidfd_open(pid) for pid in maker.pids().result()]
        (raylet,) = raylets(cluster.head_node.node_ip_address)
        print("RAYLET", raylet, flush=True)
        os.kill(raylet, signal.SIGSTOP)
        report("STOPPED_END", twinkle.shutdown)
        report("REFUSED", lambda: len(start(maker="CPU")))
        os.kill(raylet, signal.SIGCONT)
        report("LEFT", lambda: have_ended(workers))
        for thread in threading.enumerate():
            if thread.name == "twinkle-disconnect":
                thread.join(30)

    def colocated(room):
        actor, sampler = start(actor="room", sampler="room")
        before = [actor.nodes().result(), sampler.nodes().result()]
        restart("actor")
        report("KEPT", lambda: [before, [actor.nodes().result(), sampler.nodes().result()]])
        cluster.remove_node(room)
        report("APART", lambda: restart("actor"))
        report("LOST_END", twinkle.shutdown)

    def is_silent(maker):
        stopped = [*raylets("127.0.0.2"), *maker.pids().result()]
        made, soon = maker.make(), maker.make_soon()
        made.wait(), soon.wait()
        send(stopped, signal.SIGSTOP)
        report("LIMIT", lambda: len(made.result(2)))
        report("DEADLINE", lambda: len(soon.result()))
        send(stopped, signal.SIGCONT)
        report("HEARD", lambda: len(made.result(60)))

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

    def head_is_lost(near, maker):
        lazies = [maker.sleep(600.0), near.sleep(600.0)]
        cluster.head_node.kill_all_processes(check_alive=False)
        report("FAR", lambda: lazies[0].result(100))
        report("NEAR", lambda: lazies[1].result(100))
        report("END", twinkle.shutdown)

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=2)
        room = cluster.add_node(num_cpus=0, resources={"room": 3}, node_ip_address="127.0.0.3")
        cluster.add_node(num_cpus=0, resources={"far": 2, "room": 3}, node_ip_address="127.0.0.2")
        own_raylet_stops()
        colocated(room)
        near, maker = start(near="CPU", maker="far")
        is_silent(maker)
        is_lost(near, maker)
        head_is_lost(near, maker)
        sys.stdout.flush()
        os._exit(0)  # what Ray's own test cluster left, it cannot end without a head
"""
NEXT = tuple(f"NEXT_{number}" for number in range(21))
REPORTS = (
    *("STOPPED_END", "REFUSED", "LEFT", "KEPT", "APART", "LOST_END", "LIMIT", "DEADLINE", "HEARD", "READ", "BUSY"),
    *(*NEXT, "OTHER", "NO_ROOM", "GONE", "RESTART", "AFTER", "FAR", "NEAR", "END"),
)

PARTS = """
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
def both(programs: Callable[..., Any]) -> tuple[Any, Any]:
    """The programs, which have begun."""
    return programs(PROGRAM), programs(PARTS)


@pytest.fixture(scope="module")
def told(both: tuple[Any, Any]) -> dict[str, Any]:
    """What the first one reported, by name; the stopped raylet's process id, and all that was printed."""
    running, _ = both
    out: dict[str, Any] = {"raylet": running.line("RAYLET", 110)}
    out.update({name: running.report(f"{name} ", 110) for name in REPORTS})
    out["printed"] = running.finish(30)
    return out


@pytest.fixture(scope="module")
def parts(both: tuple[Any, Any]) -> dict[str, Any]:
    """What the other one reported, by name."""
    _, running = both
    out = {name: running.report(f"{name} ", 110) for name in READS}
    running.finish(60)
    return out


def check_lost(answer: dict[str, Any], *parts: str, seconds: float = BOUND) -> None:
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < seconds, answer
    missing = [part for part in (*parts, "\n  called from ", "program0.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_a_stopped_raylet_does_not_hold_up_the_end_of_a_session(told: dict[str, Any]) -> None:
    ended, refused = told["STOPPED_END"], told["REFUSED"]
    assert ended["kind"] == "" and ended["seconds"] < 15, ended
    why = (
        "this process is still connected to Ray's cluster: the raylet of this node (Ray's own process, "
        f"{told['raylet']}) is stopped (SIGSTOP); SIGCONT lets it go on."
    )
    assert refused["kind"] == "BackendError" and refused["text"].startswith(why), refused
    assert sum(line.startswith(why) for line in told["printed"].splitlines()) == 1
    assert told["LEFT"]["value"] is True


def test_a_colocated_group_keeps_its_nodes_where_one_node_has_room_for_all_of_it(told: dict[str, Any]) -> None:
    before, after = told["KEPT"]["value"]  # in a session after the stopped raylet went on
    assert before == after and before[0] == before[1] and len(set(before[0])) == 2


def test_a_colocated_group_whose_node_is_lost_is_an_error_that_says_what_would_do(told: dict[str, Any]) -> None:
    assert told["APART"]["kind"] == "PlacementError", told["APART"]
    assert told["APART"]["text"].startswith(
        "group 'actor' cannot be restarted alone: colocate places it on the nodes of 'sampler', and "
    )
    assert told["APART"]["text"].endswith("is lost; shutdown() and initialize() place them together anew")
    assert told["LOST_END"]["kind"] in ("", "WorkerDiedError") and told["LOST_END"]["seconds"] < 20, told["LOST_END"]


@pytest.mark.parametrize(("name", "seconds", "method"), [("LIMIT", 2, "make"), ("DEADLINE", 4, "make_soon")])
def test_reads_of_a_silent_node_keep_their_time(told: dict[str, Any], name: str, seconds: int, method: str) -> None:
    answer = told[name]
    assert answer["kind"] == "CallTimeoutError" and seconds - 0.1 < answer["seconds"] < seconds + 6, answer
    first = answer["text"].splitlines()[0]
    assert first.startswith(f"Maker.{method} on maker[2] dp=2 is done, but the result of maker[0/2 dp=0] was not read")
    assert told["HEARD"]["value"] == 2


def test_a_lost_node_is_told_and_the_rest_goes_on(told: dict[str, Any]) -> None:
    check_lost(told["READ"], "the result of Maker.make on maker[0/2 dp=0] cannot be read: ")
    check_lost(told["BUSY"], "died during Maker.sleep", "maker[", "node")
    for name in NEXT:
        check_lost(told[name], "died during Maker.", seconds=5)
    assert told["OTHER"]["value"] == [1, 1] and told["GONE"]["value"] is True


def test_a_group_of_a_lost_node_comes_back_when_there_is_room(told: dict[str, Any]) -> None:
    assert "infeasible" in told["NO_ROOM"]["text"], told["NO_ROOM"]
    assert told["RESTART"]["kind"] == "" and told["AFTER"]["value"] == [1, 1]


def test_the_head_of_a_joined_cluster_is_lost(told: dict[str, Any]) -> None:
    assert told["FAR"]["kind"] == "WorkerDiedError" and told["FAR"]["seconds"] < 15
    first = told["FAR"]["text"].splitlines()[0]
    assert "maker[" in first and "died during Maker.sleep on " in first
    assert told["NEAR"]["kind"] == "WorkerDiedError" and told["NEAR"]["seconds"] < 15
    assert told["END"]["seconds"] < 40


@pytest.mark.parametrize("name", ["TRAINED", "TAKEN", "MIXED", "FETCHED", "ADDED"])
def test_rows_of_a_lost_node_are_an_error_that_names_their_worker(parts: dict[str, Any], name: str) -> None:
    answer = parts[name]
    assert answer["kind"] == "WorkerDiedError" and answer["seconds"] < 30, answer
    missing = [part for part in ("far[", "called from ", "program1.py:") if part not in answer["text"]]
    assert not missing, (missing, answer["text"])


def test_rows_of_other_nodes_are_read_as_before(parts: dict[str, Any]) -> None:
    assert parts["OTHER_ROWS"]["value"] == [24.0, 21.0], parts["OTHER_ROWS"]
    assert parts["SELECTED"]["value"] == [0, 2, 4, 6], parts["SELECTED"]  # a column that others have added to lost rows


def test_rows_of_a_stream_are_made_again(parts: dict[str, Any]) -> None:
    streamed = parts["STREAMED"]["value"]
    assert streamed["seen"] == list(range(24)), parts["STREAMED"]
    assert streamed["redone"] >= 1

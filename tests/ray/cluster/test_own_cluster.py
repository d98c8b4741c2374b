"""Programs with clusters of their own: a raylet and a worker are stopped, the head dies, rows move between two nodes.

They are started together, because most of the time they wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

SILENT = """
    import os, signal
    import numpy as np
    import twinkle_remote as twinkle
    from program_tools import raylets, report
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @twinkle.remote_class()
    class Maker:
        @twinkle.remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

        @twinkle.remote_function(dispatch="all")
        def make(self):
            return np.ones(100_000)  # larger ones of this host are read without its raylet

        @twinkle.remote_function(dispatch="all", timeout=4)
        def make_soon(self):
            return np.ones(100_000)  # larger ones of this host are read without its raylet

        @twinkle.remote_function(dispatch="all", timeout=4)
        def take(self, arrays):
            return len(arrays)

    def send(pids, number):
        for pid in pids:
            os.kill(pid, number)

    if __name__ == "__main__":
        twinkle.initialize("ray", groups=[DeviceGroup("maker", 2, "CPU")])
        maker = Maker(remote_group="maker", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        stopped = [*raylets(), maker.pid().result()[0]]
        made, soon, again, handed = maker.make(), maker.make_soon(), maker.make(), maker.make()
        for lazy in (made, soon, again, handed):
            lazy.wait()
        send(stopped, signal.SIGSTOP)
        report("LIMIT", lambda: len(made.result(2)))
        report("DEADLINE", lambda: len(soon.result()))
        taken = maker.take(handed)
        report("TAKEN", lambda: taken.result())
        send(stopped, signal.SIGCONT)
        report("AGAIN", lambda: len(again.result(30)) + len(made.result(30)))
        send(stopped, signal.SIGSTOP)
        report("ENDED", lambda: twinkle.shutdown(0))
"""

HEAD = """
    import os, signal, time
    from pathlib import Path
    import ray
    import twinkle_ray
    import twinkle_remote as twinkle
    from program_tools import report
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Victim:
        @twinkle.remote_function(dispatch="all")
        def work(self, seconds):
            time.sleep(seconds)
            return os.getpid()

    def kill(name, folder):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                first, *rest = path.read_bytes().split(b"\\0")
            except OSError:
                continue
            if first.endswith(name.encode()) and folder.encode() in b" ".join(rest):
                os.kill(int(path.parent.name), signal.SIGKILL)
                return
        raise LookupError(name)

    def folder_of(node):
        return node["ObjectStoreSocketName"].rpartition("/sockets/")[0]

    if __name__ == "__main__":
        groups = [DeviceGroup("a", 2, "CPU"), DeviceGroup("b", 1, "CPU")]
        twinkle.initialize("ray", groups=groups, restart="group")
        a, b = Victim(remote_group="a"), Victim(remote_group="b")
        assert len({*a.work(0), b.work(0).result()}) == 3
        lazy = a.work(600.0)
        kill("gcs_server", folder_of(ray.nodes()[0]))
        report("BUSY", lambda: lazy.result(100))
        report("NEXT", lambda: a.work(600.0).result(100))
        report("OTHER", lambda: b.work(600.0).result(100))
        report("RESTART", lambda: twinkle_ray.restart("a"))
        report("END", twinkle.shutdown)
"""

NODES = """
    import numpy as np
    import torch
    import ray
    from program_tools import start_cluster
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.backends.support import call_of

    @twinkle.remote_class()
    class Part:
        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, numbers):
            wide = np.repeat(np.asarray(numbers, dtype=np.float64), 50_000).reshape(len(numbers), -1)
            return {"x": wide, "t": torch.from_numpy(wide), "rows": [str(number) * 20_000 for number in numbers]}

        @twinkle.remote_function(dispatch="all", lazy_collect=False)
        def whole(self, value):
            value["t"][twinkle.current_worker().rank] = 5
            return float(value["t"].sum()), float(value["x"].sum())

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def first(self, batch):
            numbers = batch["x"][:, 0].tolist()
            assert batch["t"][:, 0].tolist() == numbers
            return [numbers[i] for i, row in enumerate(batch["rows"])]

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=1, object_store_memory=300 << 20)
        cluster.add_node(num_cpus=0, resources={"far": 4}, object_store_memory=300 << 20)
        groups = [DeviceGroup("near", 1, "CPU"), DeviceGroup("far", 4, "far")]
        with twinkle.session("ray", groups=groups, address=cluster.address):
            near = Part(remote_group="near", device_mesh=DeviceMesh.from_sizes(dp_size=1))
            far = Part(remote_group="far", device_mesh=DeviceMesh.from_sizes(dp_size=4))
            made = near.make(list(range(40)))
            made.wait(30)
            read = far.first(made)
            assert list(read) == list(range(40)), read
            (produced,) = twinkle.stats()[-2].produced.values()
            fetched = twinkle.stats()[-1].worker_fetched
            assert sum(fetched.values()) < 1.05 * produced, (fetched, produced)
            assert max(fetched.values()) < 0.27 * produced, (fetched, produced)
            payload = call_of(made).outcome(0).payload
            locations = ray.experimental.get_object_locations([payload.ref])[payload.ref]["node_ids"]
            assert locations == [cluster.head_node.node_id], locations
            value = {"t": torch.ones(1 << 20), "x": np.ones(1 << 20)}
            expected = (1 << 20) + 4.0, float(1 << 20)
            assert near.whole(value) == expected
            for _ in range(2):
                assert far.whole(value) == [expected] * 4
            assert far.whole(made) == [
                (float(wide.sum()) - wide[rank].sum() + 5 * 50_000, float(wide.sum()))
                for wide in [np.repeat(np.arange(40.0), 50_000).reshape(40, -1)] for rank in range(4)
            ]
            print("READY")
        cluster.shutdown()
"""


@pytest.fixture(scope="module", autouse=True)
def begun(programs: Callable[..., Any]) -> dict[str, Any]:
    return {"silent": programs(SILENT), "head": programs(HEAD), "nodes": programs(NODES)}


def check_late(answer: dict[str, Any], seconds: int, method: str) -> None:
    assert answer["kind"] == "CallTimeoutError", answer
    assert seconds - 0.1 < answer["seconds"] < seconds + 6
    first, line, rank, *_ = answer["text"].splitlines()
    assert first.startswith(f"{method} on maker[2] dp=2 is done, but the result of maker[0/2 dp=0] was not read within")
    assert f"within {seconds} s" in first and "bytes of maker[0/2]" in first
    assert line.startswith("  called from ") and "program0.py:" in line and rank == "  rank 0:"


def test_reads_of_a_silent_node_of_an_own_cluster_keep_their_time(begun: dict[str, Any]) -> None:
    running = begun["silent"]
    check_late(running.report("LIMIT", 110), 2, "Maker.make")
    check_late(running.report("DEADLINE", 110), 4, "Maker.make_soon")
    taken = running.report("TAKEN", 110)
    assert taken["kind"] == "CallTimeoutError" and taken["seconds"] < 10
    first, second = taken["text"].split("  rank 0:\n")[1].split("  rank 1:\n")
    assert "is stopped (SIGSTOP)" in first and "in Twinkle's own code:" in second and "object_store.py" in second
    again = running.report("AGAIN", 110)
    assert again["value"] == 4, again
    ended = running.report("ENDED", 110)
    assert ended["kind"] == "" and ended["seconds"] < 20
    running.finish(30)
    assert running.left_over(10) == []


def test_a_cluster_of_ones_own_that_loses_its_head(begun: dict[str, Any]) -> None:
    running = begun["head"]
    busy = running.report("BUSY", 110)
    assert busy["kind"] == "WorkerDiedError" and busy["seconds"] < 15
    first, second, *_ = busy["text"].splitlines()
    assert first.startswith(("a[0/2] died during Victim.work on ", "a[1/2] died during Victim.work on "))
    assert "called from" in second
    assert "the cluster's head at 127.0.0.1:" in first and "refuses connections: its process ended" in first
    assert "the cluster's head" in running.report("NEXT", 5)["text"]
    other = running.report("OTHER", 5)
    assert "b[0/1] died during Victim.work on " in other["text"] and "the cluster's head" in other["text"]
    assert "cannot be restarted: the cluster's head at" in running.report("RESTART", 5)["text"]
    assert running.report("END", 30)["seconds"] < 40
    running.finish(10)
    assert running.left_over(0) == []


def test_rows_move_between_nodes_not_values(begun: dict[str, Any]) -> None:
    assert "READY" in begun["nodes"].finish(110)

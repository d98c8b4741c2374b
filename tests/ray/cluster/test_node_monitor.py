"""Heads and nodes that end are told of within seconds, and the session goes without them."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_ray.cluster.node_monitor import NodeMonitor
from twinkle_ray.cluster.places import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

pytestmark = pytest.mark.long


def listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(64)
    return made


def until(true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end


def test_what_ends_is_lost_and_what_comes_back_is_not() -> None:
    head = listening()
    place = head.getsockname()
    told: list[Mapping[str, str]] = []
    with closing(NodeMonitor({HEAD: place}, interval=0.05, grace=0.15, report=told.append)) as monitor:
        assert monitor.lost(HEAD) is None
        head.close()
        until(lambda: monitor.lost(HEAD))
        assert (
            monitor.lost(HEAD) == f"the cluster's head at 127.0.0.1:{place[1]} refuses connections: its process ended"
        )
        with socket.create_server(place):
            until(lambda: monitor.lost(HEAD) is None)
            until(lambda: len(told) == 2)
    assert told == [{HEAD: f"the cluster's head at 127.0.0.1:{place[1]} refuses connections: its process ended"}, {}]


def test_a_node_that_never_answered_is_not_lost_and_one_that_comes_later_is_watched() -> None:
    with listening() as head, listening() as node, listening() as closed:
        never, place = closed.getsockname(), node.getsockname()
        closed.close()
        with closing(NodeMonitor({HEAD: head.getsockname(), "never": never}, interval=0.05, grace=0.15)) as monitor:
            monitor.watch({"node": place})
            node.accept()[0].close()
            node.close()
            until(lambda: monitor.lost("node"))
            assert str(monitor.lost("node")).startswith("its node at 127.0.0.1:")
            assert monitor.lost("never") is None and monitor.lost(HEAD) is None


def time_out() -> None:
    raise TimeoutError("its own")


def test_what_hangs_is_left_alone_when_the_head_is_lost() -> None:
    head = listening()
    with closing(NodeMonitor({HEAD: head.getsockname()}, interval=0.05, grace=0.15)) as monitor:
        done: list[int] = []
        monitor.during(lambda: done.append(1))
        assert done == [1]
        with pytest.raises(ZeroDivisionError):
            monitor.during(lambda: 1 // 0)
        with pytest.raises(TimeoutError, match="its own"):
            monitor.during(time_out)
        ended = threading.Event()
        head.close()
        monitor.during(ended.wait)
        monitor.during(lambda: done.append(2))
        ended.set()
        assert done == [1]


PROGRAM = """
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
"""


@pytest.mark.ray
def test_a_cluster_of_ones_own_that_loses_its_head(program: Callable[..., Any]) -> None:
    running = program(
        PROGRAM
        + """
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
    )
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

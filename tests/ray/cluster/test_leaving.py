"""The end of a session on a joined cluster whose raylet does not answer: bounded, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

PROGRAM = """
    import os, select, signal, threading
    import twinkle_remote as twinkle
    from program_tools import raylets, report, start_cluster
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Maker:
        @twinkle.remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

    def session():
        twinkle.initialize("ray", groups=[DeviceGroup("maker", 2, "CPU")], address=cluster.address)
        return list(Maker(remote_group="maker").pid())

    def have_ended(workers):
        return all(select.select([worker], [], [], 30)[0] for worker in workers)

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=2)
        workers = [os.pidfd_open(pid) for pid in session()]
        (raylet,) = raylets()
        print("RAYLET", raylet, flush=True)
        os.kill(raylet, signal.SIGSTOP)
        report("ENDED", twinkle.shutdown)
        report("REFUSED", session)
        os.kill(raylet, signal.SIGCONT)
        report("LEFT", lambda: have_ended(workers))
        for thread in threading.enumerate():
            if thread.name == "twinkle-leaving-ray":
                thread.join(30)
        report("AGAIN", lambda: len(session()))
        report("ENDED", twinkle.shutdown)
        cluster.shutdown()
"""


def test_a_stopped_raylet_of_a_joined_cluster_does_not_hold_up_the_end(program: Callable[..., Any]) -> None:
    running = program(PROGRAM)
    raylet = running.line("RAYLET", 110)
    ended = running.report("ENDED", 30)
    assert ended["kind"] == "" and ended["seconds"] < 15, ended
    refused = running.report("REFUSED", 30)
    why = (
        "this process is still connected to Ray's cluster: the raylet of this node (Ray's own process, "
        f"{raylet}) is stopped (SIGSTOP); SIGCONT lets it go on."
    )
    assert refused["kind"] == "BackendError" and refused["text"].startswith(why), refused
    assert running.report("LEFT", 60)["value"] is True
    assert running.report("AGAIN", 60)["value"] == 2
    assert running.report("ENDED", 30)["kind"] == ""
    assert sum(line.startswith(why) for line in running.finish(30).splitlines()) == 1
    assert running.left_over(10) == []

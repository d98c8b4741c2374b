"""Reads whose data lies where nothing answers: the raylet and the worker that made it are stopped, not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

PROGRAM = """
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


def check_late(answer: dict[str, Any], seconds: int, method: str) -> None:
    assert answer["kind"] == "CallTimeoutError", answer
    assert seconds - 0.1 < answer["seconds"] < seconds + 6
    first, line, rank, *_ = answer["text"].splitlines()
    assert first.startswith(f"{method} on maker[2] dp=2 is done, but the result of maker[0/2 dp=0] was not read within")
    assert f"within {seconds} s" in first and "bytes of maker[0/2]" in first
    assert line.startswith("  called from ") and "program0.py:" in line and rank == "  rank 0:"


def test_reads_of_a_silent_node_of_an_own_cluster_keep_their_time(program: Callable[..., Any]) -> None:
    running = program(PROGRAM)
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

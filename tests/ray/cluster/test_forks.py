"""Processes that are forked from a driver on Ray: they have no session, and their end leaves the cluster alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

PROGRAM = """
    import multiprocessing, os, time
    import numpy as np
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Actor:
        @twinkle.remote_function(dispatch="all", collect="first")
        def ones(self, seconds):
            time.sleep(seconds)
            return np.ones(1_000_000)

    def tell(call):
        try:
            print("TOLD", twinkle.get(call()), flush=True)
        except Exception as error:
            print("TOLD", type(error).__name__, error, flush=True)

    GROUPS = [DeviceGroup("actor", 2, "CPU")]

    if __name__ == "__main__":
        twinkle.initialize("ray", groups=GROUPS)
        actor = twinkle.on("actor").create(Actor)
        read, kept, pending = actor.ones(0.0), actor.ones(0.0), actor.ones(3.0)
        array = read.result()
        kept.wait()
        pid = os.fork()
        if pid == 0:
            tell(lambda: actor.ones(0.0))
            tell(kept.result)
            tell(lambda: twinkle.initialize("ray", groups=GROUPS))
            os._exit(3)  # at the end of Python, Ray frees what belongs to the parent, and crashes
        print("STATUS", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        child = multiprocessing.get_context("fork").Process(target=tell, args=(lambda: actor.ones(0.0),))
        child.start()
        child.join(60)
        print("STATUS", child.exitcode, flush=True)
        print("SUM", sum(float(part.sum()) for part in (array, pending.result(60), kept.result(60))), flush=True)
        print("AGAIN", float(actor.ones(0.0).result(60).sum()), flush=True)
        twinkle.shutdown()
        print("ENDED", flush=True)
"""


def test_a_forked_process_does_not_reach_the_cluster(program: Callable[..., Any]) -> None:
    running = program(PROGRAM)
    for start in (
        "NotInitializedError process",
        "NotInitializedError the result of Actor.ones",
        "TwinkleError process",
    ):
        told = running.line("TOLD ", 110)
        assert told.startswith(start) and 'multiprocessing.get_context("spawn")' in told
    assert running.line("STATUS ", 20) == "3"
    assert running.line("TOLD ", 20).startswith("NotInitializedError process")
    assert running.line("STATUS ", 20) == "0"
    assert running.line("SUM ", 60) == "3000000.0"
    assert running.line("AGAIN ", 60) == "1000000.0"
    running.line("ENDED", 30)
    running.finish(30)
    assert running.left_over(30) == []

"""Ray loses answers of workers: a call whose answer is lost is an error, and runs nothing twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import collections
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    if __name__ == "__main__":

        @twinkle.remote_class()
        class Counts:
            def __init__(self):
                self.seen = collections.Counter()

            @twinkle.remote_function(dispatch="all")
            def step(self):
                self.seen["step"] += 1
                return "step"

            @twinkle.remote_function(dispatch="all")
            def add(self, number):
                self.seen[number] += 1
                return number

            @twinkle.remote_function(dispatch="all")
            def read(self):
                return dict(self.seen)

        def until_it_works(function):
            while True:
                try:
                    return function()
                except twinkle.ReplyLostError:
                    continue

        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], lazy_collect=False)
        counts = until_it_works(lambda: Counts(remote_group="actor"))
        failed = 0
        for number in range(4):
            for name, call in ((number, lambda: counts.add(number)), ("step", counts.step), ("step", counts.step)):
                try:
                    assert call() == [name, name]
                except twinkle.ReplyLostError as error:
                    assert "lives, but its answer to" in str(error) and "may or may not have run" in str(error)
                    failed += 1
        for seen in until_it_works(counts.read):
            steps = seen.pop("step")
            assert steps <= 8 and set(seen.values()) == {1}, (steps, seen)
        print("FAILED", failed)
        twinkle.shutdown()
"""
# Ray loses so many percents of the answers of workers. A request that it loses holds up the next one for 30 s.
LOSSES = {"num_failures": -1, "req_failure_prob": 0, "resp_failure_prob": 30}
LOSSY = {"RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": LOSSES})}


def test_lost_replies_run_nothing_twice(joined_program: Callable[..., Any]) -> None:
    running = joined_program(PROGRAM, **LOSSY)
    out = running.finish(270)
    assert int(out.partition("FAILED ")[2].split()[0]) > 0
    assert running.left_over(30) == []

"""Messages between the driver and its workers that are lost or slow: nothing runs twice, and nothing changes order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

LOSING = """
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
        for number in range(5):
            for name, call in ((number, lambda: counts.add(number)), ("step", counts.step), ("step", counts.step)):
                try:
                    assert call() == [name, name]
                except twinkle.ReplyLostError as error:
                    assert "lives, but its answer to" in str(error) and "may or may not have run" in str(error)
                    failed += 1
        for seen in until_it_works(counts.read):
            steps = seen.pop("step")
            assert steps <= 10 and set(seen.values()) == {1}, (steps, seen)
        print("FAILED", failed)
        twinkle.shutdown(0)
"""
SLOW = """
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @twinkle.remote_class()
    class Counter:
        def __init__(self, device_mesh):
            self.calls = 0

        @twinkle.remote_function(dispatch="all")
        def run(self):
            self.calls += 1
            return self.calls

    if __name__ == "__main__":
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], lazy_collect=False)
        counter = Counter(remote_group="actor", device_mesh=DeviceMesh.from_sizes(tp_size=2))
        calls = [twinkle.submit(counter.run) for _ in range(5)]
        assert [call.result(30) for call in calls] == [[i, i] for i in range(1, 6)]
        twinkle.shutdown(0)
"""


@pytest.fixture(scope="module", autouse=True)
def losing(joined_programs: Callable[..., Any]) -> Any:
    """It begins first: after some losses Ray itself waits for 30 s."""
    failing = {"num_failures": -1, "req_failure_prob": 15, "resp_failure_prob": 15}
    lost = json.dumps({"CoreWorkerService.grpc_client.PushTask": failing})
    return joined_programs(LOSING, RAY_testing_rpc_failure=lost)


def test_slow_messages_change_nothing(program: Callable[..., Any]) -> None:
    program(SLOW, RAY_testing_asio_delay_us="CoreWorkerService.grpc_server.PushTask=50000:150000").finish(110)


def test_lost_requests_and_replies_run_nothing_twice(losing: Any) -> None:
    out = losing.finish(270)
    assert int(out.partition("FAILED ")[2].split()[0]) > 0

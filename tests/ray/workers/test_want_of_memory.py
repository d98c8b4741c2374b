"""Memory that is short: of a worker, and of the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

HEAD = """
    import twinkle_remote as twinkle
    from program_tools import outcome
    from twinkle_mesh import DeviceGroup, DeviceMesh

    MESH = DeviceMesh.from_sizes(tp_size=2)
"""


def test_want_of_memory(joined_program: Callable[..., Any]) -> None:
    running = joined_program(
        HEAD
        + """
    if __name__ == "__main__":
        @twinkle.remote_class()
        class Greedy:
            @twinkle.remote_function(dispatch="all")
            def limit(self, more):
                import resource
                now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (now + more, resource.RLIM_INFINITY))

            @twinkle.remote_function(dispatch="all")
            def take(self, size):
                return len(bytearray(size))

            @twinkle.remote_function(dispatch="all")
            def give(self, size):
                return [bytes(1000) + bytes([i % 256]) for i in range(size // 1000)]

            @twinkle.remote_function(dispatch="all")
            def count(self, rows):
                return len(rows)

        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], lazy_collect=False)
        greedy = Greedy(remote_group="actor", device_mesh=MESH)
        greedy.limit(400 << 20)
        def told(function):
            try:
                return function()
            except MemoryError as error:
                assert isinstance(error, twinkle.RemoteCallError)
                raise
        rows = [bytes(1000) + bytes([i % 256]) for i in range(500_000)]
        print("TAKE", outcome(lambda: told(lambda: greedy.take(4 << 30))), flush=True)
        print("GIVE", outcome(lambda: told(lambda: greedy.give(300 << 20))), flush=True)
        print("COUNT", outcome(lambda: told(lambda: greedy.count(rows))), flush=True)
        print("AFTER", outcome(lambda: greedy.take(1000)), flush=True)
        twinkle.shutdown()
    """
    )
    for name, method, cause in (
        ("TAKE", "take", "MemoryError"),
        ("GIVE", "give", "MemoryError: the result, a list, was not sent, because memory ran out"),
        ("COUNT", "count", "MemoryError: its arguments were not read"),
    ):
        told = running.report(name, 110)
        first, second, *_ = told["text"].splitlines()
        assert first.startswith((f"Greedy.{method} failed on actor[0/2", f"Greedy.{method} failed on actor[1/2"))
        assert cause in first and second.startswith("  called from "), first
        assert told["seconds"] < 100
    assert running.report("AFTER", 20)["value"] == [1000, 1000]
    running.finish(30)
    assert running.left_over(10) == []


def test_a_full_store_spills_and_loses_nothing(program: Callable[..., Any]) -> None:
    out = program(
        HEAD
        + """
    if __name__ == "__main__":
        import numpy as np

        @twinkle.remote_class()
        class Maker:
            @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
            def make(self, numbers):
                return np.repeat(np.asarray(numbers, dtype=np.float64), 1_000_000).reshape(len(numbers), -1)

            @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
            def first(self, rows):
                return rows[:, 0].tolist()

        options = {"object_store_memory": 100 << 20}
        twinkle.initialize("ray", groups=[DeviceGroup("actor", 2, "CPU")], ray_options=options)
        maker = Maker(remote_group="actor", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        made = [maker.make([2 * i, 2 * i + 1]) for i in range(20)]
        array = np.ones((2, 1_000_000))
        sent = [maker.first(array * i) for i in range(15)]
        assert [list(maker.first(rows)) for rows in made] == [[2 * i, 2 * i + 1] for i in range(20)]
        assert [list(rows) for rows in sent] == [[i, i] for i in range(15)]
        print("TOLD")
        twinkle.shutdown()
    """
    ).finish(110)
    assert "TOLD" in out

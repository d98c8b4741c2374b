"""Calls and a lazy chain against ModelScope's Twinkle (twinkle-kit), each on a Ray cluster of its own.

Both sides have the same class: eight workers answer empty calls; four make rows of 256 kB, and two others read them.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, main, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

ROWS, WIDTH = 256, 1 << 16
SIZES = {"eight": 8, "four": 4, "two": 2}


def components(twinkle: Any) -> dict[str, Any]:
    """A component for each group, of one class for both projects."""

    @twinkle.remote_class()
    class Component:
        def __init__(self, device_mesh: twinkle.DeviceMesh | None = None, **_: Any) -> None:
            self.device_mesh = device_mesh

        @twinkle.remote_function(dispatch="all", collect="none", lazy_collect=False)  # type: ignore[untyped-decorator]  # of two projects
        def empty(self) -> None:
            pass

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")  # type: ignore[untyped-decorator]  # of two projects
        def more(self, rows: list[Any]) -> list[Any]:
            return [row + 1 for row in rows]

        @twinkle.remote_function(dispatch="slice_dp", collect="sum", lazy_collect=False)  # type: ignore[untyped-decorator]  # of two projects
        def total(self, rows: list[Any]) -> float:
            return float(sum(row[0] for row in rows))

    made: Any = Component  # theirs wants a name for each instance
    return {
        name: made(device_mesh=twinkle.DeviceMesh.from_sizes(dp_size=size), remote_group=name, instance_id=name)
        for name, size in SIZES.items()
    }


@contextmanager
def ours() -> Iterator[dict[str, Any]]:
    """Our session and components."""
    import twinkle

    groups = [twinkle.DeviceGroup(name, size, "CPU") for name, size in SIZES.items()]
    with twinkle.session("ray", groups=groups):
        yield components(twinkle)


@contextmanager
def theirs() -> Iterator[dict[str, Any]]:
    """Theirs."""
    import ray

    import twinkle

    kit: Any = twinkle
    # It asks for four CPUs for a process, and Ray would start a worker for each of them first.
    alone = {"prestart_worker_first_driver": False}
    ray.init("local", num_cpus=64, include_dashboard=False, log_to_driver=False, _system_config=alone)
    groups = [kit.DeviceGroup(name=name, ranks=size, device_type="CPU") for name, size in SIZES.items()]
    kit.initialize(mode="ray", ncpu_proc_per_node=sum(SIZES.values()), groups=groups, lazy_collect=True)
    yield components(kit)


@contextmanager
def empty(side: Callable[[], AbstractContextManager[dict[str, Any]]]) -> Iterator[Callable[[], float]]:
    """A hundred calls without arguments on eight workers."""
    with side() as made:
        yield lambda: seconds(lambda: [made["eight"].empty() for _ in range(100)])


@contextmanager
def chain(side: Callable[[], AbstractContextManager[dict[str, Any]]]) -> Iterator[Callable[[], float]]:
    """64 MB of rows go to four workers, and what these make goes to two others."""
    import numpy as np

    rows = [np.ones(WIDTH, np.float32) for _ in range(ROWS)]
    with side() as made:

        def job() -> None:
            assert float(made["two"].total(made["four"].more(rows))) == 2.0 * ROWS

        yield lambda: seconds(job)


SIDES = {
    f"{name}, {what.__name__}": partial(what, side)
    for name, side in (("ours", ours), ("kit", theirs))
    for what in (empty, chain)
}
TABLE = [
    Row("100 empty calls on 8 workers", "twinkle-kit", "ours, empty", "kit, empty", "s", at_most=1.0),
    Row("256 rows of 256 kB by a lazy chain dp4 -> dp2", "twinkle-kit", "ours, chain", "kit, chain", "s", at_most=1.0),
]

if __name__ == "__main__":
    main(SIDES, TABLE)

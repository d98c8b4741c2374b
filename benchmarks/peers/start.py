"""Eight small workers ready, from nothing: a session, Ray actors by hand, and Monarch's process mesh.

Each round is a process of its own. Its seconds count from the end of its imports until each worker has answered.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments import python_of
from rows import Row, main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = 8


def ours() -> Callable[[], object]:
    """A session with a component on a group of eight."""
    import twinkle_ray.backend  # noqa: F401  # the session would load it, and Ray with it: imports do not count
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import initialize, on, remote_class, remote_function

    @remote_class()
    class Worker:
        @remote_function(dispatch="all", collect="none")
        def ready(self) -> int:
            return 1

    def start() -> object:
        initialize("ray", groups=[DeviceGroup("group", WORKERS, "CPU")], lazy_collect=False)
        return on("group").create(Worker).ready()

    return start


def by_hand() -> Callable[[], object]:
    """Actors in a placement group, on a cluster that the program starts."""
    import logging

    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    class Worker:
        def ready(self) -> int:
            return 1

    def start() -> object:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        ray.init("local", num_cpus=WORKERS, include_dashboard=False, **quiet)
        group = ray.util.placement_group([{"CPU": 1}] * WORKERS)
        kind: Any = ray.remote(num_cpus=1)(Worker)
        places = [PlacementGroupSchedulingStrategy(group, index) for index in range(WORKERS)]
        actors = [kind.options(scheduling_strategy=place).remote() for place in places]
        return ray.get([actor.ready.remote() for actor in actors])

    return start


def monarch() -> Callable[[], object]:
    """One process a worker, on this host."""
    from importlib import import_module

    actor: Any = import_module("monarch.actor")

    class Worker(actor.Actor):  # type: ignore[misc]  # Monarch is not in the environment that checks types
        @actor.endpoint  # type: ignore[untyped-decorator]  # as above
        def ready(self) -> int:
            return 1

    def start() -> object:
        processes = actor.this_host().spawn_procs(per_host={"processes": WORKERS})
        return processes.spawn("workers", Worker).ready.call().get()

    return start


WHO = {"ours": ours, "ray": by_hand, "monarch": monarch}


@contextmanager
def rounds(who: str) -> Iterator[Callable[[], float]]:
    def one_round() -> float:
        command = [str(python_of(who)), str(Path(__file__).resolve()), "--once", who]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
        return float(done.stdout.rpartition("seconds ")[2].split()[0])

    yield one_round


def once(who: str) -> None:
    """Start in this process, and print the seconds."""
    start = WHO[who]()
    began = time.perf_counter()
    start()
    print(f"seconds {time.perf_counter() - began}", flush=True)


SIDES = {who: partial(rounds, who) for who in WHO}
ROWS = [
    Row("8 small workers ready", "ray", "ours", "ray", "s", 0.7, rounds=5, by_hand="Ray by hand"),
    Row("8 small workers ready, Monarch's", "monarch", "ours", "monarch", "s", rounds=3, by_hand="Monarch"),
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        once(sys.argv[2])
    else:
        main(SIDES, ROWS)

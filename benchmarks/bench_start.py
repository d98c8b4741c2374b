"""The start of workers: a session with a cluster of its own against Ray actors by hand, each in a new process.

Both start a cluster, reserve a CPU for each worker, start the workers, and wait until each has answered. The
second rows have a class that uses torch, which the driver has loaded too.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup

BY_HAND = "by hand"


class ByHand:
    """The same, as a plain class."""

    def ready(self, uses_torch: bool) -> int:
        if not uses_torch:
            return 0
        import torch

        return torch.get_num_threads()


def start_by_hand(workers: int, *, uses_torch: bool) -> None:
    """Start Ray actors."""
    ray.init("local", num_cpus=workers + 2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    group = ray.util.placement_group([{"CPU": 1}] * workers)
    remote: Any = ray.remote
    strategies = [PlacementGroupSchedulingStrategy(group, index) for index in range(workers)]
    actors = [remote(ByHand).options(num_cpus=1, scheduling_strategy=one).remote() for one in strategies]
    ray.get([actor.ready.remote(uses_torch) for actor in actors])


@twinkle.remote_class()
class Worker:
    """A component that uses torch, or does not."""

    @twinkle.remote_function(dispatch="all", collect="none")
    def ready(self, uses_torch: bool) -> int:
        if not uses_torch:
            return 0
        import torch

        return torch.get_num_threads()


def start_ours(workers: int, *, uses_torch: bool) -> None:
    """Start a session with a component."""
    groups = [DeviceGroup("group", workers, "CPU")]
    twinkle.initialize("ray", groups=groups, lazy_collect=False, start_timeout=600.0)
    twinkle.on("group").create(Worker).ready(uses_torch)


def run(who: str, workers: int, uses_torch: bool) -> None:
    """Start workers in this process, and print its seconds."""
    if uses_torch:
        import torch  # noqa: F401  # as a driver of such workers has
    began = time.perf_counter()
    if who == BY_HAND:
        start_by_hand(workers, uses_torch=uses_torch)
    else:
        start_ours(workers, uses_torch=uses_torch)
    print(f"seconds {time.perf_counter() - began}", flush=True)


def main() -> None:
    """Run all in turns."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--workers", type=int, default=8)
    options.add_argument("--torch-workers", type=int, default=4, help="of the rows with torch: each has its own")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--run", nargs=2, metavar=("WHO", "TORCH"), help="start once in this process")
    arguments = options.parse_args()
    if arguments.run:
        run(arguments.run[0], arguments.workers, arguments.run[1] == "torch")
        return
    for kind, workers in (("small", arguments.workers), ("torch", arguments.torch_workers)):
        seconds: dict[str, list[float]] = {BY_HAND: [], "ours": []}
        for _ in range(arguments.rounds):
            for who, taken in seconds.items():
                command = [sys.executable, __file__, "--workers", str(workers), "--run", who, kind]
                out = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
                taken.append(float(out.rpartition("seconds ")[2].split()[0]))
        hand = statistics.median(seconds[BY_HAND])
        for who, taken in seconds.items():
            median = statistics.median(taken)
            aim = " (aim: <= 1.1x)" if who == "ours" else ""
            print(f"{workers} workers, {kind}, {who}: {median:.2f} s, {median / hand:.2f}x{aim}", flush=True)


if __name__ == "__main__":
    main()

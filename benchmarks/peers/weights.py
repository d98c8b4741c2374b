"""Weights from a trainer to samplers of one host: a WeightSync next to plain Ray by hand.

    python benchmarks/peers/weights.py [--rounds 9] [--megabytes 200] [--quick]

By hand, the trainer's actor returns its tensors, which puts them into Ray's object store once, and each sampler's actor
reads them there without a copy and copies them into its own. Both run on one cluster, with RAY_worker_niceness=0 and
RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1, and take turns. After each round the trainer changes all values, and the values of
all samplers are compared with the trainer's, outside of the time. A row is: name, ours, by hand, and their ratio; the
times are medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", "1")

import ray
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray.weights import ReplaceableWeights, WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

MB = 1 << 20
_FLOAT_BYTES = 4


class Tensors:
    """`count` parameters of `size` floats each."""

    def __init__(self, count: int, size: int, fill: float = 0.0) -> None:
        self.tensors = {f"t{i}": torch.nn.Parameter(torch.full((size,), fill + i), False) for i in range(count)}

    def change(self) -> None:
        """Change every value, as a step of training does."""
        torch._foreach_add_(list(self.tensors.values()), 1.0)

    def sums(self) -> list[float]:
        """One number of each tensor, from all of its values."""
        return [float(tensor.sum(dtype=torch.float64)) for tensor in self.tensors.values()]


@twinkle.remote_class()
class Model(Tensors):
    """A component that takes part in a sync."""

    def __init__(self, count: int, size: int, replaceable: bool, fill: float = 0.0) -> None:
        super().__init__(count, size, fill)
        self.replaceable = replaceable

    def weights(self) -> Any:
        return ReplaceableWeights(self.tensors) if self.replaceable else self.tensors

    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def step(self) -> None:
        self.change()

    @twinkle.remote_function(dispatch="all", collect="flatten", lazy_collect=False)
    def total(self) -> list[float]:
        return self.sums()


class Hand(Tensors):
    """An actor of plain Ray."""

    def give(self) -> dict[str, Tensor]:
        """All tensors; Ray puts them into its store."""
        return {name: tensor.detach() for name, tensor in self.tensors.items()}

    def take(self, given: dict[str, Tensor]) -> None:
        """Copy what was given into place."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.tensors.values()), list(given.values()))


Plain: Any = ray.remote(num_cpus=0)(Hand)


def paired(
    ours: Callable[[], object], theirs: Callable[[], object], change: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Median seconds of two functions that take turns, each after a change of all values."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * rounds + 4):  # the first two of each are not counted
        which = number % 2
        change()
        began = time.perf_counter()
        (ours, theirs)[which]()
        if number >= 4:
            times[which].append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def measure(name: str, count: int, size: int, samplers: int, replaceable: bool, rounds: int) -> dict[str, Any]:
    """One row: a trainer with `count` tensors of `size` floats, and so many samplers."""
    mesh = DeviceMesh.from_sizes(dp_size=samplers)
    trainer = Model(count, size, False, 1.0, remote_group="trainer")  # type: ignore[call-arg]  # of remote classes
    sampler = Model(count, size, replaceable, remote_group=f"samplers{samplers}", device_mesh=mesh)  # type: ignore[call-arg]
    sync = WeightSync(trainer, sampler)
    giver, takers = Plain.remote(count, size, 1.0), [Plain.remote(count, size) for _ in range(samplers)]

    def by_hand() -> None:
        given = giver.give.remote()
        ray.get([taker.take.remote(given) for taker in takers])

    def change() -> None:
        trainer.step()
        ray.get(giver.change.remote())

    try:
        ours, theirs = paired(sync, by_hand, change, rounds)
        sync()
        by_hand()
        assert sampler.total() == trainer.total() * samplers
        assert ray.get([taker.sums.remote() for taker in takers]) == [ray.get(giver.sums.remote())] * samplers
        sync.close()
    finally:
        for actor in (giver, *takers):
            ray.kill(actor)
    return {"name": name, "ours": ours, "theirs": theirs, "ratio": ours / theirs}


def rows(rounds: int, megabytes: int, quick: bool) -> Iterator[dict[str, Any]]:
    """The rows one by one, in seconds."""
    large, small = (8, megabytes * MB // 8 // _FLOAT_BYTES), (1024, megabytes * MB // 1024 // _FLOAT_BYTES)
    cases = [
        ("weights 12 kB, 1 -> 1", 3, 1024, 1, False),
        ("weights 12 kB, 1 -> 2", 3, 1024, 2, False),
        (f"weights {megabytes} MB in place, 1 -> 1", *large, 1, False),
        (f"weights {megabytes} MB in place, 1 -> 2", *large, 2, False),
        (f"weights {megabytes} MB in place, 1 -> 1, 1,024 tensors", *small, 1, False),
        (f"weights {megabytes} MB replaced, 1 -> 1", *large, 1, True),
    ]
    groups = [DeviceGroup("trainer", 1, "CPU"), DeviceGroup("samplers1", 1, "CPU"), DeviceGroup("samplers2", 2, "CPU")]
    with twinkle.session("ray", groups=groups):
        for case in cases[:3] if quick else cases:
            yield measure(*case, rounds=rounds if case[2] > 1024 else 3 * rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="the first three rows")
    options = parser.parse_args()
    for row in rows(options.rounds, options.megabytes, options.quick):
        print(
            f"{row['name']:<45}  {row['ours'] * 1e3:8.1f} ms  {row['theirs'] * 1e3:8.1f} ms  {row['ratio']:5.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Weights from a trainer to samplers of one host: a WeightSync, and plain Ray by hand.

By hand, the trainer's actor returns its tensors, which puts them into Ray's object store once; each sampler's actor
reads them there without a copy, and copies them into its own. Each side has a cluster of its own. Before each round the
trainer changes every value, and after it one number of each tensor is compared, both outside of the time.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

MB = 1 << 20


def parameters(count: int, size: int) -> dict[str, Tensor]:
    """`count` parameters of `size` floats."""
    import torch

    return {f"t{i}": torch.nn.Parameter(torch.full((size,), float(i)), requires_grad=False) for i in range(count)}


def change(tensors: dict[str, Tensor]) -> None:
    """Change every value, as a step of training does."""
    import torch

    torch._foreach_add_(list(tensors.values()), 1.0)


def sums(tensors: dict[str, Tensor]) -> list[float]:
    """One number of each tensor, from all of its values."""
    import torch

    return [float(tensor.sum(dtype=torch.float64)) for tensor in tensors.values()]


@contextmanager
def ours(count: int, size: int, samplers: int) -> Iterator[Callable[[], float]]:
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_ray.weights import WeightSync
    from twinkle_remote import remote_class, remote_function, session

    @remote_class()
    class Model:
        def __init__(self) -> None:
            self.tensors = parameters(count, size)

        def weights(self) -> Any:
            return self.tensors

        @remote_function(dispatch="all", collect="flatten")
        def step(self) -> list[float]:
            change(self.tensors)
            return sums(self.tensors)

        @remote_function(dispatch="all", collect="flatten")
        def sums(self) -> list[float]:
            return sums(self.tensors)

    make: Any = Model
    groups = [DeviceGroup("trainer", 1, "CPU"), DeviceGroup("samplers", samplers, "CPU")]
    with session("ray", groups=groups, lazy_collect=False):
        trainer = make(remote_group="trainer")
        mesh = DeviceMesh.from_sizes(dp_size=samplers)
        sampler = make(remote_group="samplers", device_mesh=mesh)
        sync = WeightSync(trainer, sampler)

        def one_round() -> float:
            sent = trainer.step()
            began = time.perf_counter()
            sync()
            seconds = time.perf_counter() - began
            assert sampler.sums() == sent * samplers
            return seconds

        for _ in range(3):
            one_round()
        yield one_round


@contextmanager
def by_hand(count: int, size: int, samplers: int) -> Iterator[Callable[[], float]]:
    import ray

    class Model:
        def __init__(self) -> None:
            self.tensors = parameters(count, size)

        def step(self) -> list[float]:
            change(self.tensors)
            return sums(self.tensors)

        def give(self) -> dict[str, Tensor]:
            return {name: tensor.detach() for name, tensor in self.tensors.items()}

        def take(self, given: dict[str, Tensor]) -> None:
            import torch

            with torch.no_grad():
                torch._foreach_copy_(list(self.tensors.values()), list(given.values()))

        def sums(self) -> list[float]:
            return sums(self.tensors)

    ray.init("local", num_cpus=1 + samplers, include_dashboard=False, log_to_driver=False)
    kind: Any = ray.remote(num_cpus=1)(Model)
    trainer, *takers = [kind.remote() for _ in range(1 + samplers)]

    def one_round() -> float:
        sent = ray.get(trainer.step.remote())
        began = time.perf_counter()
        given = trainer.give.remote()
        ray.get([taker.take.remote(given) for taker in takers])
        seconds = time.perf_counter() - began
        assert ray.get([taker.sums.remote() for taker in takers]) == [sent] * samplers
        return seconds

    for _ in range(3):
        one_round()
    yield one_round
    ray.shutdown()


LARGE, MANY = (8, 25 * MB // 4), (1024, 200 * MB // 1024 // 4)
CASES: dict[str, tuple[tuple[int, int, int], float | None]] = {
    "12 kB of weights, 1 to 1": ((3, 1024, 1), None),
    "12 kB of weights, 1 to 2": ((3, 1024, 2), None),
    "200 MB of weights in place, 1 to 1": ((*LARGE, 1), 1.2),
    "200 MB of weights in place, 1 to 2": ((*LARGE, 2), 1.2),
    "200 MB of weights in place, 1,024 tensors": ((*MANY, 1), 1.2),
}
SIDES = {f"ours: {name}": partial(ours, *case) for name, (case, _) in CASES.items()}
SIDES |= {f"ray: {name}": partial(by_hand, *case) for name, (case, _) in CASES.items()}
ROWS = [
    Row(name, "ray", f"ours: {name}", f"ray: {name}", "s", at_most, rounds=15, by_hand="Ray by hand")
    for name, (_, at_most) in CASES.items()
]

if __name__ == "__main__":
    main(SIDES, ROWS)

"""Building and reading a mesh, against torch's DeviceMesh and plain numpy, from 8 to 131,072 ranks.

torch's mesh is built over the fake backend without process groups, so only topology is compared; with process groups
it takes far longer. Times are the best of interleaved rounds in microseconds; ratios are within this run.
"""

from __future__ import annotations

import timeit
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable

WORLDS = {8: (2, 2, 2), 1024: (8, 16, 8), 16_384: (16, 128, 8), 131_072: (16, 1024, 8)}
NAMES = ("pp", "dp", "tp")
ROUNDS = 25
GOAL = 3.0


def ours(world: int, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """The operations of this package that are timed, all for the last rank."""
    pp, dp, tp = shape
    mesh = DeviceMesh.from_sizes(pp_size=pp, dp_size=dp, tp_size=tp)
    last = world - 1
    return {
        "build": lambda: DeviceMesh.from_sizes(pp_size=pp, dp_size=dp, tp_size=tp),
        "coordinate": lambda: mesh.coordinate(last),
        "rank_at": lambda: mesh.rank_at(pp=pp - 1, dp=0, tp=tp - 1),
        "group": lambda: mesh.group("tp", last),
        "get_slice": lambda: mesh.get_slice(4096, last),
        "submesh": lambda: mesh.submesh(("dp", "tp"), last),
    }


def with_numpy(world: int, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """The same operations on an array of ranks."""
    array = np.arange(world).reshape(shape)
    last = world - 1

    def coordinate() -> list[int]:
        found: list[int] = np.argwhere(array == last)[0].tolist()
        return found

    def get_slice() -> object:
        return np.array_split(np.arange(4096), shape[1])[coordinate()[1]]

    def group() -> object:
        pp, dp, _ = coordinate()
        return array[pp, dp, :]

    return {
        "build": lambda: np.arange(world).reshape(shape),
        "coordinate": coordinate,
        "rank_at": lambda: int(array[shape[0] - 1, 0, shape[2] - 1]),
        "group": group,
        "get_slice": get_slice,
        "submesh": lambda: array[coordinate()[0]],
    }


def with_torch(world: int, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """The operations that torch's mesh has; it reads them for the process's own rank only."""
    ranks = torch.arange(world, dtype=torch.int).view(shape)

    def build() -> TorchDeviceMesh:
        return TorchDeviceMesh("cpu", ranks, mesh_dim_names=NAMES, _init_backend=False)

    mesh = build()
    mesh._dim_group_names = []
    return {"build": build, "submesh": lambda: mesh["dp", "tp"]}


def best(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Best time of each call in microseconds; each round times all calls, so that a busy machine slows all of them."""
    timers = {name: timeit.Timer(call) for name, call in calls.items()}
    counts = {name: max(1, min(1000, round(2e-3 / max(timer.timeit(1), 1e-7)))) for name, timer in timers.items()}
    rounds = [{name: timers[name].timeit(counts[name]) / counts[name] for name in timers} for _ in range(ROUNDS)]
    return {name: min(each[name] for each in rounds) * 1e6 for name in timers}


def main() -> None:
    """Print every operation at every size, then how the largest compares with the smallest."""
    torch.set_num_threads(1)
    calls: dict[str, Callable[[], object]] = {}
    for world, shape in WORLDS.items():
        dist.init_process_group("fake", rank=world - 1, world_size=world, store=FakeStore())
        for label, made in (("mesh", ours), ("numpy", with_numpy), ("torch", with_torch)):
            calls.update({f"{name} {label} {world}": call for name, call in made(world, shape).items()})
        # torch's mesh needs the process group that it was built in, so every size is timed in its own.
        times = best({name: call for name, call in calls.items() if name.endswith(f" {world}")})
        calls = {name: call for name, call in calls.items() if " mesh " in name}
        dist.destroy_process_group()
        print(f"{world:,} ranks, (pp, dp, tp) = {shape}")
        for name in ours(world, shape):
            own = times[f"{name} mesh {world}"]
            line = f"  {name:<11}{own:8.2f} us"
            for other in ("numpy", "torch"):
                theirs = times.get(f"{name} {other} {world}")
                line += "" if theirs is None else f"   {other} {theirs:10.2f} us {theirs / own:9.2f}x"
            print(line)
    smallest, largest = min(WORLDS), max(WORLDS)
    together = best({name: call for name, call in calls.items() if name.endswith((f" {smallest}", f" {largest}"))})
    print(f"{largest:,} ranks against {smallest} (goal <= {GOAL}x)")
    for name in ours(smallest, WORLDS[smallest]):
        ratio = together[f"{name} mesh {largest}"] / together[f"{name} mesh {smallest}"]
        print(f"  {name:<11}{ratio:5.2f}x")


if __name__ == "__main__":
    main()

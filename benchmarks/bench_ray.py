"""The cost of a call against hand-written Ray, in pairs within one run on one local cluster.

    python benchmarks/bench_ray.py [--rounds 300] [--megabytes 64] [--skip-start]

Each call takes turns with its hand-written counterpart, so that a busy machine slows both. Times are
medians; bytes are counted by the workers and the driver themselves (`twinkle.stats()`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray.cluster.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORKERS = 8
MB = 1 << 20


@twinkle.remote_class()
class Component:
    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def nothing(self) -> None:
        return None

    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def number(self, step: int) -> int:
        return step

    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def first(self, array: np.ndarray[Any, Any]) -> float:
        return float(array[0])

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def copied(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array + 1

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows

    @twinkle.remote_function(dispatch="slice_dp", collect="sum")
    def total(self, array: np.ndarray[Any, Any]) -> float:
        return float(array[0].sum())


class Hand:
    def nothing(self) -> None:
        return None

    def number(self, step: int) -> int:
        return step

    def first(self, array: np.ndarray[Any, Any]) -> float:
        return float(array[0])

    def copied(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array + 1

    def rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows

    def total(self, index: int, count: int, *parts: np.ndarray[Any, Any]) -> float:
        rows = np.array_split(np.concatenate(parts), count)[index]
        return float(rows[0].sum())


Plain: Any = ray.remote(num_cpus=0)(Hand)


def paired(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of two functions that take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + max(2, rounds // 10)):
        for function, taken in zip((ours, theirs), times, strict=True):
            began = time.perf_counter()
            function()
            if number >= rounds // 10:
                taken.append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def show(what: str, ours: float, theirs: float, aim: str) -> None:
    print(f"{what:44} {ours * 1e3:9.2f} ms {theirs * 1e3:9.2f} ms {ours / theirs:7.2f}x of its time  (aim: {aim})")


def empty_calls(component: Component, plain: Sequence[Any], rounds: int) -> None:
    ours, theirs = paired(component.nothing, lambda: ray.get([one.nothing.remote() for one in plain]), rounds)
    show("empty call on 8 workers", ours, theirs, "<= 1.10x")
    ours, theirs = paired(lambda: component.number(7), lambda: ray.get([one.number.remote(7) for one in plain]), rounds)
    show("the same with a number there and back", ours, theirs, "none")


def one_array_to_all(component: Component, plain: Sequence[Any], megabytes: int) -> None:
    array = np.ones(megabytes * MB // 8)
    ours, theirs = paired(
        lambda: component.first(array), lambda: ray.get([one.first.remote(array) for one in plain]), 7
    )
    show(f"{megabytes} MB array to 8 workers, by value", ours, theirs, "3x faster")

    def once() -> None:
        ref = ray.put(array)
        ray.get([one.first.remote(ref) for one in plain])

    ours, theirs = paired(lambda: component.first(array), once, 7)
    show(f"{megabytes} MB array to 8 workers, put once", ours, theirs, "none")


def bytes_of_a_sliced_batch(component: Component, megabytes: int) -> None:
    array = np.ones((4 * megabytes, MB // 8))
    component.total(array).result()  # type: ignore[attr-defined]  # a lazy number
    record = twinkle.stats()[-1]
    fetched = sum(record.worker_fetched.values())
    print(
        f"slice_dp of {array.nbytes // MB} MB over dp4 x tp2: stores {record.driver_sent / array.nbytes:.3f}x the "
        f"payload (aim: 1.0x), workers read {fetched / array.nbytes:.3f}x of it (two tensor-parallel copies are 2x)"
    )


def rows_of_dicts(component: Component, plain: Sequence[Any], count: int, rounds: int) -> None:
    rows = [{"prompt": f"text {row}", "id": row, "ids": list(range(16))} for row in range(count)]
    cuts = [slice(count * rank // 4, count * (rank + 1) // 4) for rank in range(4)]

    def by_hand() -> list[dict[str, Any]]:
        refs = [one.rows.remote(rows[cut]) for one, cut in zip(plain, cuts, strict=False)]
        return [row for part in ray.get(refs) for row in part]

    assert twinkle.get(component.rows(rows)) == by_hand() == rows
    ours, theirs = paired(lambda: twinkle.get(component.rows(rows)), by_hand, rounds)
    show(f"{count:,} rows of dicts over dp4 and back", ours, theirs, "<= 1.3x")


def lazy_chain(producer: Component, consumer: Component, plain: Sequence[Any], megabytes: int) -> None:
    array = np.ones((megabytes, MB // 8))
    refs = [ray.put(part) for part in np.array_split(array, 4)]
    held = producer.copied(array)
    held.wait()  # type: ignore[attr-defined]  # a lazy array
    made = [one.copied.remote(ref) for one, ref in zip(plain, refs, strict=False)]
    ray.wait(made, num_returns=4)

    def ours() -> None:
        consumer.total(held).result()  # type: ignore[attr-defined]  # as above

    def fetch_all_and_slice() -> None:
        ray.get([one.total.remote(index, 2, *made) for index, one in enumerate(plain[4:6])])

    taken, theirs = paired(ours, fetch_all_and_slice, 9)
    record = twinkle.stats()[-1]
    fetched = sum(record.worker_fetched.values())
    print(
        f"lazy dp4 -> dp2 of {array.nbytes // MB} MB: consumers fetch {fetched / array.nbytes:.3f}x the payload "
        f"(aim: <= 1.05x), the driver sends {record.driver_sent:,} bytes, the calls themselves"
    )
    show("  against fetch all and slice", taken, theirs, "the ratio of the bytes, 0.5x")


def starting() -> None:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(4):
        began = time.perf_counter()
        with twinkle.session("ray", groups=[DeviceGroup("fresh", WORKERS, "CPU")]):
            times[0].append(time.perf_counter() - began)
        began = time.perf_counter()
        group = ray.util.placement_group([{"CPU": 1}] * WORKERS)
        group.wait(60)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actors = [
            Plain.options(num_cpus=1, scheduling_strategy=strategy(group, index)).remote() for index in range(WORKERS)
        ]
        ray.get([actor.nothing.remote() for actor in actors])
        times[1].append(time.perf_counter() - began)
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(group)
    show("starting 8 workers", statistics.median(times[0]), statistics.median(times[1]), "<= 1.1x")


def main() -> None:
    """Run all benchmarks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--megabytes", type=int, default=64)
    options.add_argument("--skip-start", action="store_true")
    chosen = options.parse_args()
    cluster = Cluster(None, num_cpus=2 * WORKERS, options={"object_store_memory": 2 << 30})
    if not chosen.skip_start:
        starting()
    groups = [DeviceGroup("eight", WORKERS, "CPU"), DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]
    with twinkle.session("ray", groups=groups):
        eight = twinkle.on("eight", DeviceMesh.from_sizes(dp_size=4, tp_size=2)).create(Component)
        four = twinkle.on("four", DeviceMesh.from_sizes(dp_size=4)).create(Component)
        two = twinkle.on("two", DeviceMesh.from_sizes(dp_size=2)).create(Component)
        plain = [Plain.remote() for _ in range(WORKERS)]
        print(f"{'':44} {'twinkle':>12} {'hand-written':>12}")
        empty_calls(eight, plain, chosen.rounds)
        one_array_to_all(eight, plain, chosen.megabytes)
        rows_of_dicts(four, plain[:4], 4096, 40)
        bytes_of_a_sliced_batch(eight, chosen.megabytes)
        lazy_chain(four, two, plain, 2 * chosen.megabytes)
    cluster.close()


if __name__ == "__main__":
    main()

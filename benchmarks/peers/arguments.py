"""Arguments and results against Ray by hand: large tensors, divided rows, a lazy chain, many small rows.

    python benchmarks/peers/arguments.py ["text of a row" ...]

Both sides take turns on one local cluster, so that a busy machine slows both; the first two rounds do not count. Ray by
hand puts a value once, and its tensors are read without a copy (RAY_ENABLE_ZERO_COPY_TORCH_TENSORS=1), so a reader that
writes has to copy first; ours may write. It prints one line of JSON for each row, as `rows.py` has them: the median of
each side, the median of the ratios of neighbouring rounds, and their quartiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.update({"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1", "RAY_worker_niceness": "0"})

import ray
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray.cluster.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

WORKERS = 8
MB = 1 << 20
MEGABYTES = 64
ROWS = 4096


@twinkle.remote_class()
class Component:
    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def first(self, tensor: torch.Tensor) -> float:
        return float(tensor[0])

    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def whole(self, tensor: torch.Tensor) -> float:
        return float(tensor.sum())

    @twinkle.remote_function(dispatch="all", lazy_collect=False)
    def written(self, tensor: torch.Tensor) -> float:
        return float(tensor[: len(tensor) // 8].add_(1)[0])

    @twinkle.remote_function(dispatch="slice_dp", collect="sum", lazy_collect=False)
    def share(self, tensor: torch.Tensor) -> float:
        return float(tensor[0].sum())

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def more(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1

    @twinkle.remote_function(dispatch="slice_dp", collect="sum")
    def total(self, tensor: torch.Tensor) -> float:
        return float(tensor.sum())

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten", lazy_collect=False)
    def same(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return rows


class Hand:
    def first(self, tensor: torch.Tensor) -> float:
        return float(tensor[0])

    def whole(self, tensor: torch.Tensor) -> float:
        return float(tensor.sum())

    def written(self, tensor: torch.Tensor) -> float:
        own = tensor.clone()
        return float(own[: len(own) // 8].add_(1)[0])

    def share(self, tensor: torch.Tensor) -> float:
        return float(tensor[0].sum())

    def more(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1

    def total(self, *parts: torch.Tensor) -> float:
        return float(torch.cat(parts).sum())

    def same(self, rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return rows


Plain: Any = ray.remote(num_cpus=0)(Hand)


Side = Callable[[], object]


class Pair(NamedTuple):
    """One comparison.

    Attributes:
        name: What is compared.
        ours: Our side.
        theirs: Ray by hand.
        at_most: The largest ratio that is wanted; None for none.
        clock: What is measured.
    """

    name: str
    ours: Side
    theirs: Side
    at_most: float | None
    clock: Callable[[], float] = time.perf_counter


def measured(pair: Pair, rounds: int) -> dict[str, object]:
    """Run both sides in turns."""
    load, times = os.getloadavg()[0], ([], [])  # type: tuple[float, tuple[list[float], list[float]]]
    for number in range(rounds + 2):
        for side, taken in zip((pair.ours, pair.theirs), times, strict=True):
            began = pair.clock()
            side()
            if number > 1:
                taken.append(1e3 * (pair.clock() - began))
    ratios = [ours / theirs for ours, theirs in zip(*times, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    ours, theirs = map(statistics.median, times)
    return {
        "row": pair.name, "ours": ours, "theirs": theirs, "unit": "ms", "ratio": statistics.median(ratios),
        "spread": (low, high), "peer": "Ray by hand", "version": ray.__version__, "at_most": pair.at_most, "load": load,
        "left_out": None,
    }  # fmt: skip


def one_tensor_to_all(eight: Any, plain: Sequence[Any]) -> Iterator[Pair]:
    tensor = torch.ones(MEGABYTES * MB // 4)

    def both(how: str, method: str, value: object, at_most: float | None) -> Pair:
        def by_hand() -> None:
            ref = ray.put(value)
            ray.get([getattr(one, method).remote(ref) for one in plain])

        return Pair(how, lambda: getattr(eight, method)(value), by_hand, at_most)

    what = f"{MEGABYTES} MB tensor to 8 workers"
    yield both(f"{what}, looked at", "first", tensor, 1.2)
    yield both(f"{what}, read", "whole", tensor, 1.2)
    yield both(f"{what}, an eighth written", "written", tensor, 1.0)
    yield both(f"{MEGABYTES} MB array to 8 workers, looked at", "first", tensor.numpy(), 1.2)


def divided_tensor(eight: Any, plain: Sequence[Any]) -> Iterator[Pair]:
    tensor = torch.ones(256, 64 * 1024)

    def by_hand() -> None:
        refs = [ray.put(part) for part in tensor.chunk(4)]
        ray.get([one.share.remote(refs[index // 2]) for index, one in enumerate(plain)])

    yield Pair("256 rows of 64k floats over dp4 x tp2", lambda: eight.share(tensor), by_hand, 1.0)


def lazy_chain(four: Any, two: Any, plain: Sequence[Any]) -> Iterator[Pair]:
    tensor = torch.ones(MEGABYTES * 4, MB // 16)

    def produced_by_hand() -> list[Any]:
        refs = [ray.put(part) for part in tensor.chunk(4)]
        return [one.more.remote(ref) for one, ref in zip(plain, refs, strict=False)]

    def read_by_hand(made: Sequence[Any]) -> None:
        ray.get([plain[4].total.remote(*made[:2]), plain[5].total.remote(*made[2:])])

    what = f"lazy chain dp4 -> dp2, {MEGABYTES} MB"
    yield Pair(what, lambda: two.total(four.more(tensor)).result(), lambda: read_by_hand(produced_by_hand()), 0.8)
    held, made = four.more(tensor), produced_by_hand()
    held.wait()
    ray.wait(made, num_returns=4)
    yield Pair(f"{what}, its second half", lambda: two.total(held).result(), lambda: read_by_hand(made), 0.8)


def small_rows(each: Any, plain: Sequence[Any]) -> Iterator[Pair]:
    rows: list[dict[str, object]] = [
        {"prompt": f"What is {n} and {n + 1}?", "answer": str(2 * n + 1), "ids": list(range(16)), "reward": n / ROWS}
        for n in range(ROWS)
    ]
    step = ROWS // WORKERS

    def by_hand() -> None:
        parts = [rows[n * step : (n + 1) * step] for n in range(WORKERS)]
        made = ray.get([one.same.remote(part) for one, part in zip(plain, parts, strict=True)])
        assert len([row for part in made for row in part]) == ROWS

    def ours() -> None:
        assert len(each.same(rows)) == ROWS

    what = f"{ROWS:,} rows of dicts, divided and flattened"
    yield Pair(what, ours, by_hand, 1.0)
    yield Pair(f"{what}: CPU of the driver", ours, by_hand, 1.1, time.process_time)


def pairs() -> Generator[Pair, None, None]:
    """All comparisons, on one cluster that ends with the last."""
    cluster = Cluster(None, num_cpus=3 * WORKERS, options={"object_store_memory": 2 << 30})
    groups = [DeviceGroup("eight", WORKERS, "CPU"), DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]
    try:
        with twinkle.session("ray", groups=groups):
            eight = twinkle.on("eight", DeviceMesh.from_sizes(dp_size=4, tp_size=2)).create(Component)
            each = twinkle.on("eight", DeviceMesh.from_sizes(dp_size=8)).create(Component)
            four = twinkle.on("four", DeviceMesh.from_sizes(dp_size=4)).create(Component)
            two = twinkle.on("two", DeviceMesh.from_sizes(dp_size=2)).create(Component)
            plain = [Plain.remote() for _ in range(WORKERS)]
            yield from one_tensor_to_all(eight, plain)
            yield from divided_tensor(eight, plain)
            yield from lazy_chain(four, two, plain)
            yield from small_rows(each, plain)
    finally:
        cluster.close()


def main() -> None:
    """Print one line for each comparison."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("names", nargs="*", help="parts of names of rows; without them all")
    options.add_argument("--rounds", type=int, default=11)
    chosen = options.parse_args()
    with warnings.catch_warnings(), contextlib.closing(pairs()) as every:
        warnings.simplefilter("ignore")  # Ray's, about tensors that are read without a copy
        for pair in every:
            if not chosen.names or any(name in pair.name for name in chosen.names):
                rounds = chosen.rounds * (3 if "dicts" in pair.name else 1)
                print(json.dumps(measured(pair, rounds)), flush=True)


if __name__ == "__main__":
    main()

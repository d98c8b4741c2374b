"""Tables: time to plan, evenness of balanced work, bytes by column, and minibatches of a batch on workers beside Ray.

    python benchmarks/bench_tables.py [--rows 100000] [--rounds 3] [--no-ray]

The plans need no process. The minibatches are those of a PPO step: two epochs in four minibatches over 256 rows of
64 kB (and a narrow column), which four workers made, and two others read. By hand a user gets the parts with `ray.get`
in the driver, takes the rows, and gives them with `ray.put`.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import Any

import numpy as np

from twinkle_mesh import balanced_rows, balanced_slice
from twinkle_remote.call.tables.table_rows import Operand, RowSpan, TableRows

ROWS, WIDTH, EPOCHS, MINIBATCH = 256, 16_384, 2, 64


def planned(rows: int, places: int) -> float:
    """Seconds of the process for a take of so many rows, in random order, of so many places."""
    share = rows // places
    table = TableRows((Operand(tuple([RowSpan(place, 0, share) for place in range(places)])),))
    numbers = random.Random(0).sample(range(share * places), share * places)
    began = time.process_time()
    taken = TableRows(table.operands, tuple(numbers))
    (reading,) = taken.read([range(len(numbers))])
    assert sum(len(own) for _, own in reading.pieces[0]) == len(numbers)
    return time.process_time() - began


def evenness(ranks: int, rows: int) -> tuple[float, float, float]:
    """The largest share over the mean: in the order of arrival, balanced, and of the longest row alone."""
    draw = random.Random(ranks + rows)
    costs = [draw.lognormvariate(0.0, 1.0) for _ in range(ranks * rows)]
    mean = sum(costs) / ranks
    slices = [balanced_slice(len(costs), ranks, rank) for rank in range(ranks)]
    arrival = max(sum(costs[part]) for part in slices) / mean
    balanced = max(sum(costs[row] for row in part) for part in balanced_rows(costs, ranks)) / mean
    return arrival, balanced, max(costs) / mean


def assigned(rows: int, ranks: int) -> float:
    """Seconds of the process to assign rows to ranks."""
    draw = random.Random(0)
    costs = [draw.lognormvariate(0.0, 1.0) for _ in range(rows)]
    began = time.process_time()
    balanced_rows(costs, ranks)
    return time.process_time() - began


def with_twinkle(rounds: int) -> tuple[list[float], int]:
    """Seconds of each round of minibatches, and the bytes that the driver fetched."""
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

    @remote_class()
    class Stage:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows: list[int]) -> dict[str, Any]:
            return {"ids": rows, "wide": np.ones((len(rows), WIDTH), np.float32)}

        @remote_function(dispatch="slice_dp", collect="sum")
        def read(self, rows: dict[str, Any]) -> float:
            return float(rows["wide"].sum())

    seconds: list[float] = []
    with twinkle.session("ray", groups=[DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")], progress=False):
        four = twinkle.on("four", DeviceMesh.from_sizes(dp_size=4)).create(Stage)
        two = twinkle.on("two", DeviceMesh.from_sizes(dp_size=2)).create(Stage)
        for _ in range(rounds + 1):
            made: Any = four.make(list(range(ROWS)))
            made.wait()
            began = time.perf_counter()
            sums = [two.read(part) for part in twinkle.minibatches(made, MINIBATCH, epochs=EPOCHS, seed=0)]
            assert sum(map(float, twinkle.get(sums))) == ROWS * WIDTH * EPOCHS
            seconds.append(time.perf_counter() - began)
        return seconds[1:], sum(call.driver_fetched for call in twinkle.stats())


def five_stages(words: bool) -> dict[str, int]:
    """Bytes that each stage of a stream fetched for 64 rows: whole rows, or by column.

    A sampler makes a wide column and two narrow ones; a grader, a reference and an advantage add one each; an actor
    reads three.

    Args:
        words: The functions say which columns they read and add.
    """
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

    def said(names: tuple[str, ...]) -> tuple[str, ...] | None:
        return names if words else None

    @remote_class()
    class Stage:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> dict[str, Any]:
            ids = np.zeros((len(rows), WIDTH), np.float32)
            return {"ids": ids, "logprobs": ids + 1, "texts": ["x" * 256 for _ in rows]}

        @remote_function(dispatch="slice_dp", collect="flatten", reads=said(("texts",)), adds=said(("rewards",)))
        def grade(self, rows: dict[str, Any]) -> dict[str, Any]:
            return {**rows, "rewards": [float(len(text)) for text in rows["texts"]]}

        @remote_function(dispatch="slice_dp", collect="flatten", reads=said(("ids",)), adds=said(("ref",)))
        def annotate(self, rows: dict[str, Any]) -> dict[str, Any]:
            return {**rows, "ref": rows["ids"] + 2}

        @remote_function(dispatch="slice_dp", collect="flatten", reads=said(("rewards",)), adds=said(("advantages",)))
        def add(self, rows: dict[str, Any]) -> dict[str, Any]:
            return {**rows, "advantages": [one - 1 for one in rows["rewards"]]}

        @remote_function(dispatch="slice_dp", collect="flatten", reads=said(("ids", "logprobs", "advantages")))
        def train(self, rows: dict[str, Any]) -> list[float]:
            return [float(one) for one in rows["advantages"]]

    names = ("sampler", "grader", "reference", "advantage", "actor")
    with twinkle.session("ray", groups=[DeviceGroup(name, 1, "CPU") for name in names], progress=False):
        mesh = DeviceMesh.from_sizes(dp_size=1)
        sampler, grader, reference, advantage, actor = [twinkle.on(name, mesh).create(Stage) for name in names]
        stages = (sampler.sample, grader.grade, reference.annotate, advantage.add)
        with twinkle.stream([list(range(16)) for _ in range(4)], *stages, ahead=32, rows=16) as batches:
            for batch in batches:
                twinkle.get(actor.train(batch))
        found: dict[str, int] = {}
        for call in twinkle.stats():
            found[call.method] = found.get(call.method, 0) + call.bytes_fetched
        return {name: found.get(f"Stage.{name}", 0) for name in ("grade", "annotate", "add", "train")}


def by_hand(rounds: int) -> tuple[list[float], int]:
    """The same with plain Ray."""
    import ray

    class Hand:
        def make(self, rows: list[int]) -> dict[str, Any]:
            return {"ids": rows, "wide": np.ones((len(rows), WIDTH), np.float32)}

        def read(self, rows: dict[str, Any]) -> float:
            return float(rows["wide"].sum())

    actor: Any = ray.remote(num_cpus=0)(Hand)
    ray.init(num_cpus=8, log_to_driver=False, include_dashboard=False)
    seconds, fetched = [], 0
    try:
        four, two = [actor.remote() for _ in range(4)], [actor.remote() for _ in range(2)]
        for _ in range(rounds + 1):
            share = ROWS // 4
            parts = [one.make.remote(list(range(i * share, (i + 1) * share))) for i, one in enumerate(four)]
            ray.wait(parts, num_returns=4)
            began = time.perf_counter()
            values = ray.get(parts)
            wide = np.concatenate([value["wide"] for value in values])
            ids = [row for value in values for row in value["ids"]]
            fetched += wide.nbytes
            sums = []
            for epoch in range(EPOCHS):
                order = np.random.default_rng(epoch).permutation(ROWS)
                for first in range(0, ROWS, MINIBATCH):
                    rows = order[first : first + MINIBATCH]
                    for one, own in zip(two, np.array_split(rows, 2), strict=True):
                        part = {"ids": [ids[row] for row in own], "wide": wide[own]}
                        sums.append(one.read.remote(ray.put(part)))
            assert sum(ray.get(sums)) == ROWS * WIDTH * EPOCHS
            seconds.append(time.perf_counter() - began)
    finally:
        ray.shutdown()
    return seconds[1:], fetched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-ray", action="store_true")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"take of {given.rows} rows of 64 places, planned: {min(planned(given.rows, 64) for _ in range(3)):.3f} s")
    print(f"{given.rows} rows to 1,024 ranks: {min(assigned(given.rows, 1024) for _ in range(3)):.3f} s")
    for ranks, rows in ((8, 64), (8, 16), (1024, 16)):
        arrival, balanced, longest = evenness(ranks, rows)
        print(
            f"{ranks} ranks, {rows} rows each: the largest share is {arrival:.2f} of the mean in the order of arrival, "
            f"{balanced:.3f} balanced (the longest row alone {longest:.2f})"
        )
    if not given.no_ray:
        ours, ours_bytes = with_twinkle(given.rounds)
        hand, hand_bytes = by_hand(given.rounds)
        for words in (False, True):
            moved = five_stages(words)
            shown = ", ".join(f"{name} {nbytes / 2**20:.2f}" for name, nbytes in moved.items())
            how = "by column" if words else "of whole rows"
            print(f"five stages {how}: {sum(moved.values()) / 2**20:.1f} MiB ({shown})")
        print(f"minibatches: {min(ours):.3f} s, by hand {min(hand):.3f} s, ratio {min(hand) / min(ours):.2f}")
        print(f"through the driver: {ours_bytes} bytes, by hand {hand_bytes}")


if __name__ == "__main__":
    main()

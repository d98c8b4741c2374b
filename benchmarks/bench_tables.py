"""Tables: time to plan, evenness of balanced work, bytes by column, and minibatches of a batch on workers beside Ray.

    python benchmarks/bench_tables.py [--rows 100000] [--rounds 3] [--no-ray]

The plans need no process. The minibatches are those of a PPO step: two epochs in four minibatches over 256 rows of
64 kB (and a narrow column), which four workers made, and two others read. By hand a user gets the parts with `ray.get`
in the driver, takes the rows, and gives them with `ray.put`.

The five stages are those of a stream: sampler, grader, reference, advantage, actor. By hand the actors give whole rows
to each other by refs.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from twinkle_mesh import balanced_slice
from twinkle_remote.protocol import Outcome
from twinkle_remote.tables.balance import balanced_rows
from twinkle_remote.tables.nodes import Concat, Input, StoredRows, Take
from twinkle_remote.tables.plan import part, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, WIDTH, EPOCHS, MINIBATCH = 256, 16_384, 2, 64
WIDE = 131_072  # numbers in a row of each wide column, for five stages whose bytes take longer than their calls


def planned(rows: int, places: int, readers: int) -> tuple[float, float]:
    """Seconds of the process to count a take of so many rows, in random order, of so many places; and to cut it."""
    share = rows // places
    numbers = random.Random(0).sample(range(share * places), share * places)
    table = Take(Concat(tuple([StoredRows(Input(place)) for place in range(places)])), tuple(numbers))
    outcomes = [Outcome(place, place, rows=share) for place in range(places)]
    began = time.process_time()
    counted = resolve(table, outcomes)
    then = time.process_time()
    ends = [len(numbers) * reader // readers for reader in range(readers + 1)]
    assert len([part(counted, range(a, b)) for a, b in pairwise(ends)]) == readers
    return then - began, time.process_time() - then


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
    with twinkle.session("ray", groups=[DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]):
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


Moved: TypeAlias = dict[str, dict[str, int]]
"""The bytes that each stage read, by column; "" is what belongs to no column."""


def sampled(rows: list[int], width: int) -> dict[str, Any]:
    """Rows of two wide columns and one of texts."""
    ids = np.zeros((len(rows), width), np.float32)
    return {"ids": ids, "logprobs": ids + 1, "texts": ["x" * 256 for _ in rows]}


def trained(rows: dict[str, Any]) -> list[float]:
    """A number for each row, of the three columns that a loss reads."""
    sums = rows["ids"].sum(1) + rows["logprobs"].sum(1)
    return [float(one) + own for one, own in zip(sums, rows["advantages"], strict=True)]


ADDED: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "grade": ("texts", "rewards", lambda texts: [float(len(text)) for text in texts]),
    "annotate": ("ids", "ref", lambda ids: ids + 2),
    "add": ("rewards", "advantages", lambda rewards: [one - 1 for one in rewards]),
}
"""The stages between: the column that each reads, the one that it adds, and how."""


def with_added(name: str, rows: dict[str, Any]) -> dict[str, Any]:
    """The rows with the column that a stage adds."""
    read, added, make = ADDED[name]
    return {**rows, added: make(rows[read])}


def five_stages(words: bool, width: int, rounds: int) -> tuple[list[float], Moved]:
    """Seconds of a stream of five stages over 64 rows, and the bytes that each stage fetched in the last round.

    A sampler makes a wide column and two others; a grader, a reference and an advantage add one each; an actor reads
    three.

    Args:
        words: The loop selects the columns that a stage reads, and joins those that it adds.
        width: Numbers in a row of each wide column.
        rounds: How often.
    """
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

    def stage(name: str, method: Any) -> Any:
        read = ADDED[name][0]
        return (lambda rows: twinkle.join(rows, method(twinkle.select(rows, read)))) if words else method

    @remote_class()
    class Stage:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> dict[str, Any]:
            return sampled(rows, width)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def grade(self, rows: dict[str, Any]) -> dict[str, Any]:
            return with_added("grade", rows)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def annotate(self, rows: dict[str, Any]) -> dict[str, Any]:
            return with_added("annotate", rows)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def add(self, rows: dict[str, Any]) -> dict[str, Any]:
            return with_added("add", rows)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def train(self, rows: dict[str, Any]) -> list[float]:
            return trained(rows)

    names = ("sampler", "grader", "reference", "advantage", "actor")
    seconds: list[float] = []
    moved: Moved = {}
    with twinkle.session("ray", groups=[DeviceGroup(name, 1, "CPU") for name in names]):
        mesh = DeviceMesh.from_sizes(dp_size=1)
        sampler, grader, reference, advantage, actor = [twinkle.on(name, mesh).create(Stage) for name in names]
        middle = {"grade": grader.grade, "annotate": reference.annotate, "add": advantage.add}
        stages = (sampler.sample, *(stage(name, method) for name, method in middle.items()))
        for _ in range(rounds + 1):
            calls, began = len(twinkle.stats()), time.perf_counter()
            with twinkle.stream([list(range(16)) for _ in range(4)], *stages, ahead=32, rows=16) as batches:
                some = (twinkle.select(one, "ids", "logprobs", "advantages") if words else one for one in batches)
                losses = [twinkle.get(actor.train(one)) for one in some]
            seconds.append(time.perf_counter() - began)
            assert losses == [[width + 255.0] * 16] * 4
            moved = {name: {} for name in (*ADDED, "train")}
            for call in twinkle.stats()[calls:]:
                of_stage = moved.get(call.method.removeprefix("Stage."), {})
                of_stage[""] = of_stage.get("", 0) + call.bytes_fetched
    return seconds[1:], moved


def five_stages_by_hand(width: int, rounds: int) -> tuple[list[float], Moved]:
    """The same with plain Ray: actors that pass whole rows on by refs, and at most three batches at work."""
    import ray

    class Hand:
        def __init__(self) -> None:
            self.read: dict[str, int] = {}

        def take_read(self) -> dict[str, int]:
            read, self.read = self.read, {}
            return read

        def sample(self, rows: list[int]) -> dict[str, Any]:
            return sampled(rows, width)

        def stage(self, name: str, rows: dict[str, Any]) -> Any:
            for column, value in rows.items():
                nbytes = value.nbytes if isinstance(value, np.ndarray) else len(pickle.dumps(value))
                self.read[column] = self.read.get(column, 0) + nbytes
            return trained(rows) if name == "train" else with_added(name, rows)

    kind: Any = ray.remote(num_cpus=0)(Hand)
    ray.init(address="local", num_cpus=8, log_to_driver=False, include_dashboard=False)
    seconds: list[float] = []
    moved: Moved = {}
    try:
        sampler, stages = kind.remote(), {name: kind.remote() for name in (*ADDED, "train")}
        for _ in range(rounds + 1):
            began = time.perf_counter()
            at_work: deque[Any] = deque()
            losses = []
            for _ in range(4):
                rows = sampler.sample.remote(list(range(16)))
                for name, actor in stages.items():
                    rows = actor.stage.remote(name, rows)
                at_work.append(rows)
                if len(at_work) == 3:
                    losses.append(ray.get(at_work.popleft()))
            losses += ray.get(list(at_work))
            seconds.append(time.perf_counter() - began)
            assert losses == [[width + 255.0] * 16] * 4
            moved = {name: ray.get(actor.take_read.remote()) for name, actor in stages.items()}
    finally:
        ray.shutdown()
    return seconds[1:], moved


def show_stages(how: str, seconds: list[float], moved: Moved) -> None:
    """A line for the whole, and one for each stage with its bytes by column."""
    total = sum(sum(of_stage.values()) for of_stage in moved.values())
    print(f"five stages {how}: {min(seconds):.3f} s, {total / 2**20:.1f} MiB")
    for name, of_stage in moved.items():
        ordered = sorted(of_stage.items(), key=lambda item: -item[1])
        shown = [f"{column or '(no column)'} {nbytes / 2**20:.2f}" for column, nbytes in ordered]
        print(f"    {name} {sum(of_stage.values()) / 2**20:.2f} MiB: {', '.join(shown)}")


def by_hand(rounds: int) -> tuple[list[float], int]:
    """The same with plain Ray."""
    import ray

    class Hand:
        def make(self, rows: list[int]) -> dict[str, Any]:
            return {"ids": rows, "wide": np.ones((len(rows), WIDTH), np.float32)}

        def read(self, rows: dict[str, Any]) -> float:
            return float(rows["wide"].sum())

    actor: Any = ray.remote(num_cpus=0)(Hand)
    ray.init(address="local", num_cpus=8, log_to_driver=False, include_dashboard=False)
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
    counted, cut = min(planned(given.rows, 64, 1024) for _ in range(3))
    print(f"take of {given.rows} rows of 64 places: counted in {counted:.3f} s, cut for 1,024 readers in {cut:.3f} s")
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
        for width in (WIDTH, WIDE):
            size = f"{4 * width // 1024} KiB in a row of each wide column"
            show_stages(f"by hand, {size}", *five_stages_by_hand(width, given.rounds))
            show_stages(f"of whole rows, {size}", *five_stages(False, width, given.rounds))
            show_stages(f"by column, {size}", *five_stages(True, width, given.rounds))
        print(f"minibatches: {min(ours):.3f} s, by hand {min(hand):.3f} s, ratio {min(hand) / min(ours):.2f}")
        print(f"through the driver: {ours_bytes} bytes, by hand {hand_bytes}")


if __name__ == "__main__":
    main()

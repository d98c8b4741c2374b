"""The cost of a lazy hand-over from N to N ranks: for each consumer, at 8 to 1,024 ranks, against 8 ranks.

    python benchmarks/bench_scale.py [--mode threads ray calls] [--ranks 8 64 256 1024] [--rounds 3]
        [--workers 2 8 16 32 64] [--json FILE]

"calls" measures an empty call on real workers of Ray instead, against a plain loop over as many actors.

On threads each rank is a real thread. On Ray the ranks are simulated: four actors, two for each side, take the tasks of
all ranks in turn. Tasks, answers, plans and refs are those of as many workers, but the workers do not run at once.
"Known" hands over results whose producers have answered, "pending" results whose producers are still at work, "in a
dict" eight known ones in one dict; "eager" is the same call with the rows themselves, to compare with: a thousand
threads on a few cores cost more each than eight, whatever they do. The driver's cost is the processor time of its
process (on threads: of its thread), until all consumers have answered. The consumer's cost is that of the workers'
processes (on threads: of the worker's code). All are by consumer, the best of some rounds. Each consumer reads one
piece (eight in a dict), so these are the costs by piece too.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Lazy, submit
from twinkle_remote.backends import threads
from twinkle_remote.backends.support import Worker
from twinkle_remote.call.send import run_on_workers, start
from twinkle_remote.protocol.backend import Reply
from twinkle_remote.protocol.messages import Call, Component, component_of
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.session import running, stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol import Outcome

ACTORS = 2
ROWS = 4  # of each rank
CALLS = 20
LAZIES = 8
KINDS = ("eager", "known", "in a dict", "pending")
WORKED: list[float] = []  # seconds of the consumers on threads
SPEC = FunctionSpec(dispatch="slice_dp", collect="flatten")


class MeasuredWorker(Worker):
    """A worker that measures its own processor time."""

    def run(self, *args: Any, **kwargs: Any) -> Outcome:
        """Run one task."""
        began = time.thread_time()
        outcome = super().run(*args, **kwargs)
        if self.info.group == "target":
            WORKED.append(time.thread_time() - began)
        return outcome


@twinkle.remote_class()
class Echo:
    """Returns its rows."""

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: Any) -> Any:
        """Identity."""
        return rows

    @twinkle.remote_function(dispatch="all")
    def nothing(self) -> None:
        """Return nothing."""


class SimulatedGroup:
    """Many ranks over the few workers of a group, which take turns."""

    def __init__(self, group: Any, size: int) -> None:
        self._group = group
        self.size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def info(self, rank: int) -> Any:
        """The worker that stands for a rank."""
        return self._group.info(rank % self._group.size)

    def submit(self, ranks: Sequence[int], tasks: Sequence[Any], of_rank: Sequence[int], inputs: Any) -> list[Any]:
        """Submit a call to the workers that stand for its ranks."""
        replies = []
        for rank, index in zip(ranks, of_rank, strict=True):
            (sent,) = self._group.submit([rank % self._group.size], [tasks[index]], [0], inputs)
            replies.append(Reply(rank, sent.sent))
            sent.add_done_callback(partial(_answer, replies[-1]))
        return replies


def _answer(reply: Reply, sent: Any) -> None:
    reply.answer(replace(sent.result(), rank=reply.rank))


class SimulatedBackend:
    """A backend whose groups have many ranks on few workers."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend = backend
        self._size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def group(self, name: str) -> Any:
        """A group of as many ranks as are simulated."""
        return SimulatedGroup(self._backend.group(name), self._size)


@dataclass
class Costs:
    """Costs of one hand-over, in seconds and bytes by consumer.

    Attributes:
        driver: Processor time of the driver.
        consumer: Processor time of the consumers.
        sent: Bytes of task.
        wall: Seconds of the whole hand-over, not by consumer.
    """

    driver: float
    consumer: float
    sent: float
    wall: float


def processor_seconds(_: object) -> tuple[int, float]:
    """Process id and processor time of a worker's process."""
    import os  # this function travels alone

    return os.getpid(), time.process_time()


def worker_seconds(handles: Sequence[Any]) -> float:
    """Processor time of all processes of workers."""
    return sum(dict(one for handle in handles for one in run_on_workers(handle, processor_seconds)).values())


def call(component: Component, rows: Any) -> Lazy[Any]:
    """A lazy call of `rows` on all ranks of a component."""
    return Lazy(start(Call("method", component, "rows", "Echo.rows", SPEC, "here", ["rows"], (rows,))))


def arguments(source: Component, kind: str) -> Any:
    """The arguments of the consumers."""
    rows = list(range(ROWS * len(source.ranks)))
    if kind == "eager":
        return rows
    made = [call(source, rows) for _ in range(LAZIES if kind == "in a dict" else 1)]
    if kind != "pending":
        for one in made:
            one.wait()
    return {f"column {index}": one for index, one in enumerate(made)} if kind == "in a dict" else made[0]


def hand_over(source: Component, target: Component, kind: str, consumers: Any) -> Costs:
    """Measure one hand-over; with `consumers` their processes' time is measured."""
    ranks = len(source.ranks)
    on_threads = consumers is None
    made = arguments(source, kind)
    clock = time.thread_time if on_threads else time.process_time
    before = 0.0 if on_threads else worker_seconds([consumers])
    WORKED.clear()
    began, own = time.perf_counter(), clock()
    taken = call(target, made)
    taken.wait()
    driver, wall = clock() - own, time.perf_counter() - began
    others = sum(WORKED) if on_threads else worker_seconds([consumers]) - before
    sent = stats()[-1 if on_threads else -2].driver_sent
    value = taken.result()
    assert sum(value["column 0"] if kind == "in a dict" else value) == sum(range(ROWS * ranks))
    return Costs(driver / ranks, others / ranks, sent / ranks, wall)


def widened(handle: Any, ranks: int) -> Component:
    """The component with this many ranks."""
    component = component_of(handle)
    assert component is not None
    return replace(component, ranks=tuple(range(ranks)), mesh=DeviceMesh.from_sizes(dp_size=ranks))


def measure(mode: str, ranks: int, rounds: int) -> dict[str, Costs]:
    """The best of some rounds, of each kind."""
    workers = ranks if mode == "threads" else ACTORS
    vars(threads)["Worker"] = MeasuredWorker  # only here, to measure
    groups = [DeviceGroup(name, workers, "CPU") for name in ("source", "target")]
    best: dict[str, Costs] = {}
    with twinkle.session(mode, groups=groups):
        handles = [twinkle.on(group.name).create(Echo) for group in groups]
        submit(handles[0].rows, [1]).wait()
        runtime, real = running(), running().backend
        consumers = None if mode == "threads" else handles[1]
        source, target = (widened(handle, ranks) for handle in handles)
        for _ in range(rounds):
            for kind in KINDS:
                if mode != "threads":
                    runtime.backend = SimulatedBackend(real, ranks)
                found = hand_over(source, target, kind, consumers)
                runtime.backend = real
                best[kind] = found if kind not in best else _least(best[kind], found)
    return best


def _least(left: Costs, right: Costs) -> Costs:
    return Costs(*(min(a, b) for a, b in zip(vars(left).values(), vars(right).values(), strict=True)))


def peak_bytes() -> int:
    """Largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Plain:
    """An actor of Ray that does nothing."""

    def nothing(self) -> None:
        """Return nothing."""


def calls(workers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure an empty call on real workers, and the plain loop over actors; prints a table."""
    best: dict[tuple[str, int], tuple[float, float]] = {}
    with twinkle.session("ray", groups=[DeviceGroup("ranks", max(workers), "CPU")]):
        whole = component_of(twinkle.on("ranks").create(Echo))
        assert whole is not None
        actor_class: Any = ray.remote(Plain)
        actors = [actor_class.options(num_cpus=0).remote() for _ in range(max(workers))]
        spec = FunctionSpec(dispatch="all")
        for count in [*workers] * rounds:
            component = replace(whole, ranks=tuple(range(count)))
            nothing = Call("method", component, "nothing", "Echo.nothing", spec, "here")
            ways: dict[str, Callable[[], object]] = {
                "call": lambda call=nothing: Lazy(start(call)).result(),  # type: ignore[misc]  # a default binds it
                "plain Ray loop": lambda count=count: ray.get([one.nothing.remote() for one in actors[:count]]),  # type: ignore[misc]  # too
            }
            for name, function in ways.items():
                found = _cost(function)
                best[name, count] = min(best.get((name, count), found), found)
    figures: list[dict[str, Any]] = [
        {"mode": "calls", "simulated": False, "name": name, "ranks": count, "seconds": wall, "driver_seconds": driver}
        for (name, count), (driver, wall) in best.items()
    ]
    print("\none call")
    print(f"  {'':<32} {'N':>7} {'driver ms':>10} {'all, ms':>10}")
    for one in figures:
        one["peak_bytes"] = peak_bytes()
        columns = f"{one['driver_seconds'] * 1e3:>10.2f} {one['seconds'] * 1e3:>10.2f}"
        print(f"  {one['name']:<32} {one['ranks']:>7} {columns}", flush=True)
    return figures


def _cost(function: Callable[[], object]) -> tuple[float, float]:
    """Processor time of the driver, and the time of a call."""
    function()
    began, own = time.perf_counter(), time.process_time()
    for _ in range(CALLS):
        function()
    return (time.process_time() - own) / CALLS, (time.perf_counter() - began) / CALLS


def main() -> None:
    """Print a table, and write the figures as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = ["threads", "ray", "calls"]
    parser.add_argument("--mode", nargs="+", default=modes, choices=modes)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 8, 16, 32, 64])
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for mode in options.mode:
        if mode == "calls":
            figures += calls(options.workers, options.rounds)
            continue
        print(f"\n{mode}: hand-over from N to N ranks, by consumer" + (" (simulated ranks)" if mode == "ray" else ""))
        print(f"  {'':<9} {'N':>5} {'driver us':>16} {'consumer us':>16} {'task bytes':>16} {'all, ms':>9}")
        first: dict[str, Costs] = {}
        for ranks in options.ranks:
            for name, found in measure(mode, ranks, options.rounds).items():
                base = first.setdefault(name, found)
                columns = [
                    f"{value * scale:9.0f} {value / against if against else 1.0:5.2f}x"
                    for value, against, scale in (
                        (found.driver, base.driver, 1e6),
                        (found.consumer, base.consumer, 1e6),
                        (found.sent, base.sent, 1.0),
                    )
                ]
                print(f"  {name:<9} {ranks:>5} {' '.join(columns)} {found.wall * 1e3:>9.1f}", flush=True)
                figures.append(
                    {"mode": mode, "simulated": mode == "ray", "name": f"hand-over, {name}", "ranks": ranks}
                    | {"seconds": found.wall, "peak_bytes": peak_bytes()}
                    | {"driver_seconds": found.driver, "consumer_seconds": found.consumer, "task_bytes": found.sent}
                )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()

"""The cost of the call protocol: calls against plain functions, split and collect against plain slicing.

Times are the best of interleaved rounds in microseconds; ratios are within this run. Where a type allows views, a split
of a large payload takes as long as one of a small payload; a join copies it once, as concatenate does.
"""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_mesh import DeviceGroup, DeviceMesh, balanced_slice
from twinkle_remote import on, remote_class, remote_function, session, submit
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.protocol.backend import Memory
from twinkle_remote.protocol.messages import Call, Component
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.rows.concat import concat

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 8
ROUNDS = 9
SPEC = FunctionSpec(dispatch="slice_dp", collect="flatten")
MESH = DeviceMesh.from_sizes(dp_size=WORKERS)


@dataclass
class Rollout:
    """Columns of the same length, two of them in a dict."""

    tokens: Any
    rest: dict[str, Any]


@remote_class()
class Echo:
    """Returns its rows."""

    @remote_function(dispatch="all")
    def nothing(self) -> None:
        """An empty call."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: Any) -> Any:
        """Identity."""
        return rows


def best(timed: dict[str, Callable[[], object]], number: int) -> dict[str, float]:
    """Microseconds of each call, the best of interleaved rounds."""
    found = dict.fromkeys(timed, float("inf"))
    for _ in range(ROUNDS):
        for name, call in timed.items():
            found[name] = min(found[name], timeit.timeit(call, number=number) / number * 1e6)
    return found


def show(title: str, times: dict[str, float], against: str) -> None:
    """Print a table of times and ratios."""
    print(f"\n{title}")
    for name, time in times.items():
        print(f"  {name:<44} {time:>11.1f} us  {time / times[against]:>8.2f} x")


def calls() -> None:
    """An empty call and one with rows, against as many calls of the plain function."""
    plain = Echo()
    rows = list(range(WORKERS * 8))
    mine = [rows[MESH.get_slice(len(rows), rank)] for rank in range(WORKERS)]
    with session("threads", groups=[DeviceGroup("eight", WORKERS, "CPU"), DeviceGroup("one", 1, "CPU")]):
        echo = on("eight", MESH).create(Echo)
        single = on("one").create(Echo)
        timed: dict[str, Callable[[], object]] = {
            f"the method {WORKERS} times": lambda: [plain.nothing() for _ in range(WORKERS)],
            f"threads, empty, {WORKERS} workers": lambda: submit(echo.nothing).wait(),
            "threads, empty, 1 worker": lambda: submit(single.nothing).wait(),
            f"threads, {len(rows)} rows over {WORKERS}": lambda: submit(echo.rows, rows).result(),
            f"the method on {WORKERS} slices": lambda: [plain.rows(part) for part in mine],
        }
        times = best(timed, 50)
    show("a call on threads", times, f"the method {WORKERS} times")
    with session("local"):
        local = Echo()
        show("a call in one process", best({"the method": plain.nothing, "local": local.nothing}, 500), "the method")


def pieces(value: Any) -> list[Any]:
    """Return what dispatch gives each data rank."""
    component = Component("eight", "echo", "Echo", tuple(range(WORKERS)), MESH)
    call = Call("method", component, "rows", "Echo.rows", SPEC, "here", ["value"], (value,))
    shares = dispatch(call, Memory().put)
    return [shares.arguments[index][0][0] for index in shares.of_rank]


def slices(length: int) -> list[slice]:
    """The rows of each data rank."""
    return [balanced_slice(length, MESH.data_world_size, part) for part in range(MESH.data_world_size)]


def payloads(length: int, width: int) -> dict[str, tuple[Any, Callable[[], Any], Callable[[Any], Any]]]:
    """By name: a value, cutting it by hand, and joining its parts by hand."""
    rows = list(range(length))
    columns = {name: np.ones((length, width), dtype="float32") for name in ("ids", "mask")}
    cuts = slices(length)

    def cut_rollout() -> list[Rollout]:
        return [Rollout(columns["ids"][part], {"mask": columns["mask"][part], "texts": rows[part]}) for part in cuts]

    def join_rollouts(parts: list[Rollout]) -> Rollout:
        ids = np.concatenate([part.tokens for part in parts])
        mask = np.concatenate([part.rest["mask"] for part in parts])
        return Rollout(ids, {"mask": mask, "texts": [row for part in parts for row in part.rest["texts"]]})

    return {
        "list": (rows, lambda: [rows[part] for part in cuts], lambda parts: [row for part in parts for row in part]),
        "dict of 2 arrays": (
            columns,
            lambda: [{name: array[part] for name, array in columns.items()} for part in cuts],
            lambda parts: {name: np.concatenate([part[name] for part in parts]) for name in columns},
        ),
        "dataclass, dict, arrays and a list": (
            Rollout(columns["ids"], {"mask": columns["mask"], "texts": rows}),
            cut_rollout,
            join_rollouts,
        ),
    }


def splitting() -> None:
    """Splitting and joining small and large payloads, against doing it by hand."""
    for length, width, number in ((64, 4, 200), (20_000, 512, 5)):
        for name, (value, cut, rejoin) in payloads(length, width).items():
            parts = pieces(value)
            timed: dict[str, Callable[[], object]] = {
                "cut by hand": cut,
                "dispatch": lambda value=value: pieces(value),  # type: ignore[misc]  # bound here, as its default
                "join by hand": lambda rejoin=rejoin, parts=parts: rejoin(parts),  # type: ignore[misc]  # likewise
                "collect": lambda parts=parts: concat(parts),  # type: ignore[misc]  # likewise
            }
            times = best(timed, number)
            title = f"{name}, {length} rows" + ("" if name == "list" else f" of {width} floats")
            print(f"\n{title} over {WORKERS} data ranks")
            for ours, theirs in (("dispatch", "cut by hand"), ("collect", "join by hand")):
                more = times[ours] - times[theirs]
                ratio = times[ours] / times[theirs]
                print(f"  {ours:<9} {times[ours]:>11.1f} us  {ratio:>8.2f} x {theirs}, {more:+.1f} us a call")
    array = np.zeros((20_000, 512), dtype="float32")
    views = all(np.shares_memory(part, array) for part in pieces(array))
    print(f"\narrays are cut as views: {views}")


if __name__ == "__main__":
    calls()
    splitting()

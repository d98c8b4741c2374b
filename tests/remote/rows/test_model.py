"""Calls over many workers against one worker: equal, or refused on both sides of the call.

A program is a mesh, an option of dispatch and collect, and a value of one kind in one wrapper. By default 150
are drawn; `TWINKLE_PROGRAMS=10000 TWINKLE_SEED=1` draws more of them.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.remote.rows.kinds_of_rows import FRESH, HIDDEN, KNOWN, ONCE, UNKNOWN, WRAPPERS, same

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import CollectError, DispatchError, current_worker, get, on, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROGRAMS = int(os.environ.get("TWINKLE_PROGRAMS", "80"))
SEED = int(os.environ.get("TWINKLE_SEED", "0"))
ALL = {**KNOWN, **FRESH, **UNKNOWN, **ONCE, **HIDDEN}
MESHES: dict[str, tuple[int, dict[str, int] | None]] = {
    "none": (3, None),
    "one": (1, {"dp_size": 1}),
    "dp2": (2, {"dp_size": 2}),
    "dp2 tp2": (4, {"dp_size": 2, "tp_size": 2}),
    "fsdp2 dp2": (4, {"fsdp_size": 2, "dp_size": 2}),
    "pp2 dp2": (4, {"pp_size": 2, "dp_size": 2}),
    "dp4 cp2": (8, {"dp_size": 4, "cp_size": 2}),
}


def every_nth(
    length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (args[0], args[1][i::length]), kwargs


def made_of(kind: str, wrapper: str, numbers: Sequence[int]) -> Any:
    return WRAPPERS[wrapper](ALL[kind](list(numbers)))


@remote_class()
class Model:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def echo(self, value: Any) -> Any:
        return value

    @remote_function(dispatch="slice_dp", collect="flatten", replicate=("more",))
    def beside(self, value: Any, *more: Any) -> Any:
        assert more == ([1, 2, 3],)
        return value

    @remote_function(dispatch="slice_dp", collect="flatten")
    def made(self, kind: str, wrapper: str, numbers: list[int]) -> Any:
        return made_of(kind, wrapper, numbers)

    @remote_function(dispatch="slice", collect="flatten")
    def made_by_worker(self, kind: str, wrapper: str, numbers: list[int]) -> Any:
        return made_of(kind, wrapper, numbers)

    @remote_function(dispatch=every_nth, collect="flatten")
    def dealt(self, kind: str, numbers: list[int]) -> Any:
        return made_of(kind, "bare", numbers)

    @remote_function(dispatch="all", collect="first")
    def size(self) -> int:
        return current_worker().world_size

    @remote_function(dispatch="slice_dp", collect="sum")
    def total(self, numbers: list[int]) -> Any:
        return {"sum": sum(numbers), "rows": len(numbers)}

    @remote_function(dispatch="slice_dp", collect="mean")
    def mean(self, numbers: list[int]) -> Any:
        return sum(numbers) / len(numbers) if numbers else 1e9

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rank_and_rows(self, numbers: list[int]) -> Any:
        return {"numbers": numbers, "loss": 2.0}


@pytest.fixture
def models() -> Iterator[dict[str, tuple[Model, int]]]:
    """A component for each mesh, with its number of data ranks."""
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in sorted({size for size, _ in MESHES.values()})]
    with session("threads", groups=groups), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that jagged and sparse tensors are new
        made = {}
        for name, (size, sizes) in MESHES.items():
            mesh = None if sizes is None else DeviceMesh.from_sizes(**cast("Any", sizes))
            made[name] = on(f"of-{size}", mesh).create(Model), size if mesh is None else mesh.data_world_size
        yield made


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return get(call())
    except (DispatchError, CollectError) as error:
        return error


def _echo(draw: random.Random, model: Model, shares: int, numbers: list[int]) -> tuple[str, bool]:
    kind, wrapper = draw.choice(list(ALL)), draw.choice(list(WRAPPERS))
    how = draw.choice(["echo", "beside"])
    method = getattr(model, how)
    got = attempt(lambda: method(made_of(kind, wrapper, numbers), *([[1, 2, 3]] if how == "beside" else [])))
    said = f"{how} of {kind} {wrapper}: {got!r:.300}"
    if kind in UNKNOWN or kind in ONCE:
        return said, isinstance(got, DispatchError)
    if kind in HIDDEN:
        return said, isinstance(got, DispatchError | CollectError) or shares == 1 or same(
            got, made_of(kind, wrapper, numbers)
        )
    return said, same(got, made_of(kind, wrapper, numbers))


def _made(draw: random.Random, model: Model, shares: int, numbers: list[int]) -> tuple[str, bool]:
    kind, wrapper = draw.choice([*KNOWN, *UNKNOWN]), draw.choice(list(WRAPPERS))
    how = draw.choice(["made", "made_by_worker"])
    got = attempt(lambda: getattr(model, how)(kind, wrapper, numbers))
    said = f"{how} {kind} {wrapper}: {got!r:.300}"
    if kind in UNKNOWN:  # what one rank alone made is not joined
        return said, isinstance(got, CollectError) or min(shares, len(numbers)) < 2
    return said, same(got, made_of(kind, wrapper, numbers))


def _handed(draw: random.Random, model: Model, shares: int, numbers: list[int]) -> tuple[str, bool]:
    """The result of one call is an argument of the next, which another component on as many workers takes."""
    kind, wrapper = draw.choice([*KNOWN, *UNKNOWN]), draw.choice(list(WRAPPERS))
    how, after = draw.choice(["made", "made_by_worker"]), "echo"
    got = attempt(lambda: getattr(model, after)(getattr(model, how)(kind, wrapper, numbers)))
    said = f"{after} of {how} {kind} {wrapper}: {got!r:.300}"
    if kind in UNKNOWN:
        refused = isinstance(got, CollectError | DispatchError)
        return said, refused or (min(shares, len(numbers)) < 2 and same(got, made_of(kind, wrapper, numbers)))
    return said, same(got, made_of(kind, wrapper, numbers))


def _dealt(draw: random.Random, model: Model, shares: int, numbers: list[int]) -> tuple[str, bool]:
    kind = draw.choice(["ints", "array", "dict", "tensor", "columns"])
    got = attempt(lambda: model.dealt(kind, numbers))
    count = get(model.size())
    dealt = [n for i in range(count) for n in numbers[i::count]]
    return f"dealt {kind}: {got!r:.300}", same(got, made_of(kind, "bare", dealt))


def _reduced(draw: random.Random, model: Model, shares: int, numbers: list[int]) -> tuple[str, bool]:
    how = draw.choice(["total", "mean", "rank_and_rows"])
    numbers = numbers or [3]
    got = attempt(lambda: getattr(model, how)(numbers))
    mean = sum(numbers) / len(numbers)
    if how == "rank_and_rows":
        want: Any = {"numbers": numbers, "loss": 2.0}
        return f"{how}: {got!r}", isinstance(got, CollectError) if shares > 1 else got == want
    want = {"sum": sum(numbers), "rows": len(numbers)} if how == "total" else mean
    return f"{how} of {numbers}: {got!r}", got == want or (isinstance(got, float) and abs(got - want) < 1e-9)


def test_many_workers_give_what_one_gives_or_refuse(
    models: dict[str, tuple[Model, int]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    draw = random.Random(SEED)
    wrong = []
    for program in range(PROGRAMS):
        mesh = draw.choice(list(models))
        model, shares = models[mesh]
        numbers = [draw.randrange(60) for _ in range(draw.choice([0, 1, 2, 3, 4, 6, 8, 11]))]
        numbers = sorted(set(numbers))
        run = draw.choice([_echo, _echo, _echo, _made, _made, _handed, _handed, _dealt, _reduced])
        said, right = run(draw, model, shares, numbers)
        if not right:
            wrong.append(f"program {program} on {mesh}, {len(numbers)} rows: {said}")
    assert not wrong, f"{len(wrong)} of {PROGRAMS}:\n" + "\n".join(wrong[:30])

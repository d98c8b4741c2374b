"""Random programs of operations on tables over random types, on lazy values and on plain ones at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch
from tests.remote.rows.kinds_of_rows import same

from twinkle_remote import (
    concat,
    get,
    join,
    map,  # noqa: A004  named like Python's
    remote_class,
    remote_function,
    select,
    submit,
    take,
)
from twinkle_remote.rows import rows_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence


@dataclass
class Rows:
    ids: Any
    scores: Any
    note: str = "same"


class Pairs(NamedTuple):
    left: list[int]
    right: Any


def by_number(costs: Sequence[float]) -> list[float]:
    """Costs that put rows of any type out of their order."""
    return [(7 * number * number + 3) % 11 for number in range(len(costs))]


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten", balance=by_number)
    def balanced(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", balance=by_number)
    def second(self, first: Any, rows: Any) -> Any:
        assert len_of(first) == len_of(rows)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", balance=by_number)
    def first(self, rows: Any, other: Any) -> Any:
        assert len_of(other) == len_of(rows)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice", collect="flatten")
    def by_rank(self, rows: list[Any]) -> list[Any]:
        return rows

    @remote_function(dispatch="all", collect="first")
    def whole(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice_dp", collect=lambda parts, mesh: parts[0])
    def own(self, rows: Any) -> Any:
        return rows


def as_list(start: int, n: int) -> Any:
    return list(range(start, start + n))


KINDS: dict[str, Callable[[int, int], Any]] = {
    "list": as_list,
    "texts": lambda start, n: [f"row {row}" for row in range(start, start + n)],
    "dicts": lambda start, n: [{"a": row, "b": [row] * 3} for row in range(start, start + n)],
    "array": lambda start, n: np.arange(start, start + n * 2).reshape(n, 2),
    "floats": lambda start, n: np.arange(start, start + n, dtype=np.float32),
    "tensor": lambda start, n: torch.arange(start, start + n * 3).reshape(n, 3),
    "columns": lambda start, n: {"ids": as_list(start, n), "x": torch.arange(start, start + n) * 0.5, "note": "same"},
    "other columns": lambda start, n: {"ids": as_list(start, n), "extra": as_list(start, n)},
    "dataclass": lambda start, n: Rows(as_list(start, n), np.arange(start, start + n) * 2),
    "pandas": lambda start, n: pd.DataFrame({"ids": as_list(start, n), "x": np.arange(n) * 1.5}),
    "series": lambda start, n: pd.Series(range(start, start + n)),
    "range": lambda start, n: range(start, start + n),
    "pairs": lambda start, n: Pairs(as_list(start, n), np.arange(n)),
    "nested": lambda start, n: {"ids": as_list(start, n), "in": {"x": torch.arange(n)}},
    "polars": lambda start, n: pl.DataFrame({"ids": as_list(start, n), "x": np.arange(n) * 1.5}),
    "arrow": lambda start, n: pa.table({"ids": as_list(start, n), "x": np.arange(n) * 1.5}),
}


class Program:
    """A random program, run on lazy values and on plain ones at once."""

    def __init__(self, rng: random.Random, makers: list[Any]) -> None:
        self.rng, self.makers, self.steps = rng, makers, list[str]()

    def leaf(self) -> tuple[Any, Any]:
        kind = self.rng.choice(self.kinds)
        value = KINDS[kind](self.rng.randrange(50), self.rng.randrange(9))
        maker = self.rng.choice(self.makers)
        how = self.rng.choice(("same", "same", "balanced", "by_rank", "whole", "own", "plain"))
        if how == "by_rank" and not isinstance(value, list):
            how = "same"
        self.steps.append(f"{kind}[{len_of(value)}] by {how}")
        lazy = value if how == "plain" else submit(getattr(maker, how), value)
        return lazy, get(lazy)

    def rows(self, total: int) -> Any:
        """Mostly rows that are there."""
        rng = self.rng
        if rng.random() < 0.3:
            start, stop = (rng.choice((None, rng.randrange(-10, 11))) for _ in range(2))
            return slice(start, stop, rng.choice((None, 1, 2, -1, -2)))
        reach = total if rng.random() < 0.95 else total + 3
        numbers = [rng.randrange(-reach, reach) for _ in range(rng.randrange(8))] if reach else []
        return rng.choice((list, tuple, np.array, torch.tensor))(numbers) if numbers else numbers

    def run(self) -> None:
        self.kinds = self.rng.sample(list(KINDS), self.rng.choice((1, 1, 2)))
        found = [self.leaf() for _ in range(self.rng.randint(1, 3))]
        for _ in range(self.rng.randrange(5)):
            lazy, plain = self.rng.choice(found)
            act = self.rng.choice(("take", "take", "concat", "select", "map", "join", "join", "call", "call"))
            if act == "take":
                rows = self.rows(len_of(plain))
                self.steps.append(f"take {rows!r}")
                made = self.both(partial(take, rows=rows), lazy, plain)
            elif act == "select":
                names = self.rng.sample(("ids", "x", "scores", "extra"), self.rng.randint(1, 2))
                self.steps.append(f"select {names}")
                made = self.both(columns_of(*names), lazy, plain)
            elif act == "join":
                near = [one for one in found if len_of(one[1]) == len_of(plain)]
                few = self.rng.randint(1, 2)
                more = [self.rng.choice(near if self.rng.random() < 0.9 else found) for _ in range(few)]
                self.steps.append(f"join {few + 1}")
                lazies, plains = [lazy, *(one for one, _ in more)], [plain, *(one for _, one in more)]
                made = self.both(lambda values: join(*values), lazies, plains)
            elif act == "call":
                made = self.called(lazy, plain)
            elif act == "map":
                self.steps.append("map")
                made = self.both(lambda value: map(value, doubled), lazy, plain)
            else:
                more = [self.rng.choice(found) for _ in range(self.rng.randrange(3))]
                self.steps.append(f"concat {len(more) + 1}")
                made = self.both(concat, [lazy, *(one for one, _ in more)], [plain, *(one for _, one in more)])
            if made is None or rows_of(made[1]) is None:
                return
            found.append(made)
        for lazy, plain in found:
            assert same(get(lazy), plain), self.steps
        lazy, plain = found[-1]
        reader = self.rng.choice(self.makers)
        assert same(get(reader.whole(lazy)), plain), self.steps
        expected = outcome(lambda: get(reader.same(plain)))
        self.check(expected, outcome(lambda: get(reader.same(lazy))))
        others = [as_list(0, len_of(plain)), submit(reader.same, as_list(0, len_of(plain)))]
        other = self.rng.choice(others)
        calls: list[Callable[[Any], Any]] = [
            lambda value: reader.balanced(value),
            lambda value: reader.second(other, value),
            lambda value: reader.first(value, other),
        ]
        for call in calls:
            for value in (plain, lazy):
                self.check(
                    listed(expected), listed(outcome(partial(lambda call, value: get(call(value)), call, value)))
                )

    def called(self, lazy: Any, plain: Any) -> tuple[Any, Any] | None:
        """A call of lazy rows and of plain ones."""
        how = self.rng.choice(("same", "balanced"))
        method = getattr(self.rng.choice(self.makers), how)
        self.steps.append(how)
        expected = outcome(lambda: get(method(plain)))
        if not isinstance(expected, Exception):
            return submit(method, lazy), listed(plain)
        self.check(expected, outcome(lambda: get(method(lazy))))
        return None

    def both(self, act: Callable[[Any], Any], lazy: Any, plain: Any) -> tuple[Any, Any] | None:
        expected = outcome(lambda: act(plain))
        if not isinstance(expected, Exception):
            return act(lazy), expected
        self.check(expected, outcome(lambda: get(act(lazy))))
        return None

    def check(self, expected: Any, found: Any) -> None:
        if isinstance(expected, Exception):
            assert isinstance(found, Exception), (self.steps, expected, found)
            kinds = [kind for kind in (IndexError, KeyError, TypeError, ValueError) if isinstance(expected, kind)]
            assert not kinds or isinstance(found, tuple(kinds)), (self.steps, expected, found)
        else:
            assert same(found, expected), (self.steps, expected, found)


def listed(value: Any) -> Any:
    """Ranges, of which rows are taken, become lists."""
    return value if isinstance(value, Exception) or rows_of(value) is None else take(value, slice(None))


def columns_of(*names: str) -> Callable[[Any], Any]:
    return lambda value: select(value, *names)


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (ValueError, TypeError, LookupError) as error:
        return error


def len_of(value: Any) -> int:
    if isinstance(value, dict):
        return len(value["ids"]) if "ids" in value else len(next(iter(value.values())))
    if isinstance(value, Pairs):
        return len(value.left)
    if isinstance(value, Rows):
        return len(next(one for one in (value.ids, value.scores) if one is not None))
    return len(value)


def doubled(rows: Any) -> Any:
    return take(rows, [row for row in range(len_of(rows)) for _ in range(2)])


MESHES: dict[str, Any] = {"a": {"dp_size": 2}, "b": {"dp_size": 2, "tp_size": 2}, "c": {"dp_size": 3}}

"""Random programs whose functions read and add columns by their other arguments, fail, and come too late."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.remote.call.tables.table_programs import (
    Maker,
    Program,
    column_of,
    columns_of,
    has_column,
    len_of,
    listed,
    same,
    with_column,
)

from twinkle_remote import (
    Replicate,
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
from twinkle_remote.errors import CallTimeoutError, DispatchError
from twinkle_remote.values import rows_of
from twinkle_remote.values.picking import column_names

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

READ: dict[str, tuple[str, ...] | None] = {
    "plus": ("ids",),
    "both": ("ids", "x"),
    "scored": ("ids", "scores", "added"),
    "none": ("nowhere", "ids"),
    "every": None,
}
ADDED = {"plus": "added", "both": ("added", "x"), "scored": ("scores",), "none": "added", "every": ("ids", "added")}
ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, TimeoutError)
LATE = 0.15


def read_by(loss: str, **options: object) -> Any:
    found = READ[loss]
    return found and (*found, *(("scores",) if options.get("beta") else ()))


def computed(rows: Any, loss: str, beta: float = 0.0) -> list[int]:
    """A number for each row, of the columns that are read."""
    names: tuple[str, ...] = ("ids", "x", "scores") if loss == "every" else ("ids",)
    names = tuple(name for name in names if name == "ids" or has_column(rows, name))
    names += tuple(name for name in READ[loss] or () if name not in ("ids", "nowhere") and has_column(rows, name))
    names += ("scores",) if beta and has_column(rows, "scores") else ()
    columns = [[int(one) for one in column_of(rows, name)] for name in names]
    return [sum(row) for row in zip(*columns, strict=True)]


def with_computed(rows: Any, loss: str, beta: float = 0.0) -> Any:
    numbers = computed(rows, loss, beta)
    added = ADDED[loss]
    for place, name in enumerate([added] if isinstance(added, str) else added):
        rows = with_column(rows, name, [number + place for number in numbers])
    return rows


def failed_at(rows: Any, bad: int) -> Any:
    if bad in [int(one) for one in column_of(rows, "ids")]:
        raise ArithmeticError(f"row {bad}")
    return rows


@remote_class()
class Ruled(Maker):
    @remote_function(dispatch="slice_dp", collect="flatten", reads=read_by, adds=lambda loss: ADDED[loss])
    def by_loss(self, rows: Any, loss: str = "plus", *, beta: float = 0.0) -> Any:
        return with_computed(rows, loss, beta)

    @remote_function(
        dispatch="slice_dp",
        collect="flatten",
        replicate=("loss", "beta"),
        reads=lambda loss, beta: read_by(*loss, beta=beta),
        adds=lambda loss: ADDED[loss[0]],
    )
    async def awaited(self, loss: list[str], rows: Any, beta: float = 0.0) -> Any:
        return with_computed(rows, loss[0], beta)

    @remote_function(dispatch="slice_dp", collect="flatten", split=("rows",), reads=read_by, collective=True)
    def together(self, rows: Any, loss: str = "plus", beta: float = 0.0) -> Any:
        return computed(rows, loss, beta)

    @remote_function(
        dispatch="slice_dp", collect="flatten", uneven="strict", reads=read_by, adds=lambda loss: ADDED[loss]
    )
    def strict(self, rows: Any, loss: str = "plus", *, beta: float = 0.0) -> Any:
        return with_computed(rows, loss, beta)

    @remote_function(dispatch="slice_dp", collect="flatten", uneven="pad", reads=read_by)
    def padding(self, rows: Any, loss: str = "plus", *, beta: float = 0.0) -> Any:
        return computed(rows, loss, beta)

    @remote_function(dispatch="slice_dp", collect="flatten", uneven="drop", reads=read_by)
    def dropping(self, rows: Any, loss: str = "plus", *, beta: float = 0.0) -> Any:
        return computed(rows, loss, beta)

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds=lambda name: name)
    def failing(self, rows: Any, bad: int, name: str = "added") -> Any:
        return with_column(failed_at(rows, bad), name, list(column_of(rows, "ids")))

    @remote_function(dispatch="slice_dp", collect="flatten")
    def failing_whole(self, rows: Any, bad: int, name: str = "added") -> Any:
        return failed_at(rows, bad)

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="added", timeout=LATE / 3)
    def late(self, rows: Any) -> Any:
        time.sleep(LATE)
        return with_column(rows, "added", list(column_of(rows, "ids")))


ALONE = Ruled()


def got(act: Callable[..., Any], *arguments: Any) -> Any:
    return get(act(*arguments))


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except ERRORS as error:
        return error


class RuleProgram(Program):
    """A random program of functions with rules, beside the same of plain values.

    Args:
        rng: Draws it.
        makers: The components.
        divided: The number of data ranks of each.
    """

    with_columns: Sequence[str] = ("columns", "other columns", "dataclass", "pandas", "polars", "arrow")
    maps = True

    def __init__(self, rng: random.Random, makers: list[Any], divided: Sequence[int]) -> None:
        super().__init__(rng, makers)
        self.divided = divided

    def run(self) -> None:
        rng = self.rng
        self.kinds = rng.choices(self.with_columns, k=2)
        found = [self.leaf() for _ in range(rng.randint(1, 3))]
        for _ in range(rng.randint(2, 6)):
            lazy, plain = rng.choice(found)
            act = rng.choice(("take", "join", "select", "concat", *["ruled"] * 4, *["failing"] * 2))
            made: tuple[Any, Any] | None
            if act == "take":
                rows = self.rows(len_of(plain))
                made = self.both(partial(take, rows=rows), lazy, plain)
                self.steps.append(f"take {rows!r}")
            elif act == "select":
                names = rng.sample(("ids", "x", "scores", "added"), rng.randint(1, 3))
                made = self.both(columns_of(*names), lazy, plain)
                self.steps.append(f"select {names}")
            elif act in ("join", "concat"):
                more = rng.choice(found)
                word = (lambda values: join(*values)) if act == "join" else concat
                made = self.both(word, [lazy, more[0]], [plain, more[1]])
                self.steps.append(act)
            elif act == "failing":
                self.failing(lazy, plain, found)
                continue
            else:
                made = self.ruled(lazy, plain)
            if made is None or rows_of(made[1]) is None:
                continue
            if column_names(made[1]) is not None:
                found.append(made)
        for lazy, plain in found:
            self.check(plain, get(lazy))
            self.check_read(rng.choice(self.makers), lazy, plain)
        if rng.random() < 0.05:
            self.late(*rng.choice(found))

    def ruled(self, lazy: Any, plain: Any) -> tuple[Any, Any] | None:
        """A call by one of the rules."""
        rng = self.rng
        place = rng.randrange(len(self.makers))
        maker = self.makers[place]
        method = rng.choice(("by_loss", "by_loss", "awaited", "together", "strict", "padding", "dropping"))
        loss, beta = rng.choice(list(READ)), rng.choice((0.0, 0.0, 0.5))
        self.steps.append(f"{method}({loss!r}, {beta}) on {place}")
        adds = method in ("by_loss", "awaited", "strict")
        total = rows_of(plain)
        expected: Any = outcome(lambda: (with_computed if adds else computed)(plain, loss, beta))
        ranks = self.divided[place]
        if method in ("strict", "padding", "dropping") and (total or 0) < ranks:  # which these refuse
            return None
        if method == "strict" and (total or 0) % ranks:
            expected = DispatchError("rows do not divide")
        elif total and not isinstance(expected, Exception) and method == "dropping":
            expected = listed(expected)[: total // ranks * ranks]

        def call(on: Any, rows: Any) -> Any:
            given, lazily = loss, on is not ALONE and rng.random() < 0.3
            marked: Any = submit(maker.whole, given) if lazily else given
            if method == "awaited":
                names: Any = [marked] if rng.random() < 0.5 or lazily else Replicate([marked])
                return getattr(on, method)(names, rows, beta)
            if rng.random() < 0.5:
                return getattr(on, method)(rows, marked, beta=beta)
            return getattr(on, method)(beta=beta, loss=marked, rows=rows)

        for value in (plain, lazy):
            self.check(listed(expected), listed(outcome(partial(got, call, maker, value))))
        if method in ("by_loss", "together") and not isinstance(expected, Exception):
            self.check(listed(expected), listed(outcome(lambda: call(ALONE, plain))))
        if isinstance(expected, Exception):
            return None
        return call(maker, lazy), listed(expected)

    def failing(self, lazy: Any, plain: Any, found: Sequence[tuple[Any, Any]]) -> None:
        """A stage that fails: each operation on what it would have made is its failure, and nothing else."""
        rng = self.rng
        ids = outcome(lambda: [int(one) for one in column_of(plain, "ids")])
        if isinstance(ids, Exception) or not ids:
            return
        maker, reader = rng.choice(self.makers), rng.choice(self.makers)
        method = rng.choice(("failing", "failing", "failing_whole"))
        self.steps.append(method)
        bad = submit(getattr(maker, method), lazy, rng.choice(ids), rng.choice(("added", "scores", "ids")))
        other = rng.choice(found)[0]
        acts: list[Callable[[Any], Any]] = [
            lambda value: value,
            lambda value: take(value, [100]),
            lambda value: take(value, slice(0, 0)),
            lambda value: select(value, "nowhere"),
            lambda value: select(value, "ids"),
            lambda value: concat([other, value]),
            lambda value: join(value, other),
            lambda value: join(other, take(value, [0, 0])),
            lambda value: submit(reader.same, value),
            lambda value: submit(reader.balanced, value),
            lambda value: submit(reader.by_loss, value, rng.choice(list(READ))),
            lambda value: submit(reader.reading, value, ("ids",)),
            lambda value: submit(reader.failing, value, bad=-1),
            lambda value: submit(reader.whole, take(value, [0])),
        ]
        if self.maps:
            acts.append(lambda value: map(value, lambda rows: rows))
        for number in rng.sample(range(len(acts)), 3):
            raised = outcome(partial(got, acts[number], bad))
            assert isinstance(raised, ArithmeticError), (self.steps, number, raised)

    def late(self, lazy: Any, plain: Any) -> None:
        """A call that is not done in its time is so for each that reads it, and the rows are there as before."""
        if not has_column(plain, "ids") or not rows_of(plain):
            return
        maker = self.rng.choice(self.makers)
        expected = with_column(plain, "added", list(column_of(plain, "ids")))
        late = submit(maker.late, lazy)
        for value, wanted in ((late, expected), (take(late, [0]), take(expected, [0])), (late, expected)):
            found = outcome(partial(get, value))
            if not isinstance(found, CallTimeoutError):  # it is done by now
                self.check(listed(wanted), listed(found))
        self.check_read(maker, lazy, plain)

    def check_read(self, reader: Any, lazy: Any, plain: Any) -> None:
        """The rows that a call is given."""
        self.check(outcome(lambda: get(reader.same(plain))), outcome(lambda: get(reader.same(lazy))))

    def check(self, expected: Any, found: Any) -> None:
        if isinstance(expected, Exception):
            kinds = [kind for kind in (LookupError, TypeError, ValueError) if isinstance(expected, kind)]
            assert isinstance(found, Exception), (self.steps, expected, found)
            assert not kinds or isinstance(found, tuple(kinds)), (self.steps, expected, found)
        else:
            assert same(found, expected), (self.steps, expected, found)

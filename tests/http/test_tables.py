"""Tables over HTTP: the client makes them, a call is given their plan, and no column that it does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_mesh import DeviceMesh
from twinkle_remote import (
    concat,
    get,
    join,
    map,  # noqa: A004  named like Python's
    minibatches,
    on,
    register_type,
    remote_class,
    remote_function,
    select,
    session,
    stats,
    stream,
    take,
)
from twinkle_remote.call.lazy_values.lazy import source_of
from twinkle_remote.call.tables.table import Table, rows_of_lazy
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import current_worker, register_splitter, register_type, remote_class, remote_function, serve
    from twinkle_remote import session

    def out_of_order(costs):
        return [7 * row % 5 + 1 for row in range(len(costs))]

    @remote_class()
    class Maker:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def same(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
            return rows

        @remote_function(dispatch="slice_dp", collect="flatten", balance=out_of_order)
        def even(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
            return rows

        @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
        def grade(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
            return {**rows, "score": [2 * one for one in rows["ids"]]}

        @remote_function(dispatch="slice_dp", collect="flatten", reads="score", adds=lambda name: name)
        async def again(self, rows: dict[str, list[int]], name: str = "again") -> dict[str, list[int]]:
            return {**rows, name: [one + 1 for one in rows["score"]]}

        @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
        def peek(self, rows: dict[str, list[int]]) -> list[int]:
            return list(rows["more"])

        @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
        def there(self, rows: dict[str, object]) -> list[tuple[int, list[str]]]:
            return [(one, list(rows)) for one in rows["ids"]]

    @remote_class()
    class Flagged:
        def __init__(self, even: bool = True) -> None:
            pass

        @remote_function(dispatch="slice_dp", collect="flatten", balance="even")
        def ranks(self, rows: list[str]) -> list[int]:
            return [current_worker().rank for _ in rows]

    class Texts(list):
        pass

    class Lengths:
        def length(self, value):
            return len(value)

        def slice(self, value, start, stop):
            return Texts(list(value)[start:stop])

        def concat(self, values):
            return Texts([one for value in values for one in value])

        def costs(self, value):
            return [float(len(one)) for one in value]

    register_splitter(Texts, Lengths())
    register_type(Texts, "Texts", to_plain=list, from_plain=Texts)

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        with serve([Maker, Flagged], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", balance=True)
    def even(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
    def grade(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return {**rows, "score": [2 * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads="score", adds=lambda name: name)
    async def again(self, rows: dict[str, list[int]], name: str = "again") -> dict[str, list[int]]:
        return {**rows, name: [one + 1 for one in rows["score"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def peek(self, rows: dict[str, list[int]]) -> list[int]:
        return list(rows["more"])

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def there(self, rows: dict[str, object]) -> list[tuple[int, list[str]]]:
        return []


@remote_class()
class Flagged:
    def __init__(self, even: bool = True) -> None:
        pass

    @remote_function(dispatch="slice_dp", collect="flatten", balance="even")
    def ranks(self, rows: list[str]) -> list[int]:
        return []


class Texts(list[str]):
    pass


register_type(Texts, "Texts", to_plain=list, from_plain=Texts)


def test_tables_of_served_results_are_those_of_their_values(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    plain = {"ids": list(range(5)), "more": [row * 10 for row in range(5)]}
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        made = maker.same(plain)
        for table, expected in [
            (take(made, [4, 0, -1]), take(plain, [4, 0, -1])),
            (take(made, slice(0, 0)), take(plain, slice(0, 0))),
            (select(concat([made, plain, made]), "ids"), select(concat([plain, plain, plain]), "ids")),
        ]:
            assert get(table) == expected
            assert get(maker.same(table)) == expected
            assert get(maker.even(table)) == expected
        assert get(maker.even(maker.even(plain))) == plain
        joined = join(made, {"reward": list(range(5))})
        assert get(take(joined, [3])) == {"ids": [3], "more": [30], "reward": [3]}
        seen = [row for batch in minibatches(made, 2, seed=1) for row in get(maker.same(batch))["ids"]]
        assert sorted(seen) == plain["ids"]
        with pytest.raises(IndexError, match="5"):
            get(take(made, [5]))
        with pytest.raises(DispatchError, match="HTTP"):
            map(made, lambda rows: rows)


def test_columns_that_are_read_and_added_are_so_at_the_server(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    plain = {"ids": list(range(5)), "more": [row * 10 for row in range(5)]}
    expected = {**plain, "score": [0, 2, 4, 6, 8]}
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        for rows in (plain, maker.same(plain)):
            graded = maker.grade(rows)
            assert get(maker.same(graded)) == expected
            assert get(graded) == expected
            with pytest.raises(KeyError, match=r"reads.*'more'"):
                get(maker.peek(rows))


def test_workers_of_a_server_keep_only_the_columns_that_were_added(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    plain: Any = {"ids": [0, 1, 2, 3], "wide": np.zeros((4, 25_000))}
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        made: Any = maker.same(plain)
        before = len(stats())
        graded: list[Any] = [maker.grade(made if number % 2 else plain) for number in range(10)]
        assert [next(iter(maker.there(one)))[1] for one in graded] == [["ids", "wide", "score"]] * 10
        assert sum(call.driver_sent for call in stats()[before:]) < 50_000
        for one in (graded[1], graded[0]):
            value, table = get(one), source_of(one)
            assert isinstance(table, Table)
            assert list(table.leaves[-1].result()) == ["score"]
            assert value["score"] == [0, 2, 4, 6] and value["wide"].shape == (4, 25_000)
        assert rows_of_lazy(graded[1], "a test") == 4


def test_a_stream_over_http_keeps_only_the_columns_that_were_added(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    source: Any = [{"ids": [row, row + 1], "more": [10 * row, 10 * row + 10]} for row in range(0, 20, 2)]
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        seen: list[int] = []
        with stream(source, maker.same, maker.grade, maker.again, ahead=8, chunk=1) as batches:
            for batch in batches:
                value = get(batch)
                seen += value["ids"]
                assert value["more"] == [10 * one for one in value["ids"]]
                assert value["score"] == [2 * one for one in value["ids"]]
                assert value["again"] == [2 * one + 1 for one in value["ids"]]
        assert seen == list(range(20))


def test_neither_rows_of_tables_nor_columns_that_are_not_read_are_sent(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    wide = ["x" * 100_000] * 4
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        plain: Any = {"ids": [0, 1, 2, 3], "wide": wide}
        made: Any = maker.same(plain)
        uploaded = stats()[-1].driver_sent
        table = take(concat([made, take(made, [1])]), [4, 0, -1])
        assert list(maker.there(table)) == [(1, ["ids", "wide"]), (0, ["ids", "wide"]), (1, ["ids", "wide"])]
        assert list(maker.there({"ids": [5, 6], "wide": wide[:2]})) == [(5, ["ids", "wide"]), (6, ["ids", "wide"])]
        assert next(iter(maker.there(join(made, {"more": [1, 2, 3, 4]})))) == (0, ["ids", "wide", "more"])
        later = stats()[-3:]
        assert uploaded > 400_000
        assert sum(call.driver_sent + call.driver_fetched for call in later) < 10_000
        with pytest.raises(KeyError, match=r"reads.*'more'"):
            get(maker.peek({"ids": [1], "more": [2]}))
        with pytest.raises(IndexError, match="9"):
            get(maker.same(take(made, [9])))
        with pytest.raises(KeyError, match="strange"):
            get(maker.same(select(made, "strange")))


def test_a_flag_of_the_constructor_is_that_of_the_server_s_component(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    rows = Texts(["a", "bb", "c", "much longer"])
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        for even, expected in ((True, [1, 1, 1, 0]), (False, [0, 0, 1, 1])):
            flagged = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Flagged, even)
            assert get(flagged.ranks(rows)) == expected

"""Tables over HTTP: the client makes them, a call is given their plan, and no column that it does not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceMesh
from twinkle_remote import (
    concat,
    get,
    join,
    map,  # noqa: A004  named like Python's
    minibatches,
    on,
    remote_class,
    remote_function,
    select,
    session,
    stats,
    stream,
    take,
)
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, serve
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

        @remote_function(dispatch="slice_dp", collect="flatten")
        def grade(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
            return {**rows, "score": [2 * one for one in rows["ids"]]}

        @remote_function(dispatch="slice_dp", collect="flatten")
        async def again(self, rows: dict[str, list[int]], name: str = "again") -> dict[str, list[int]]:
            return {**rows, name: [one + 1 for one in rows["score"]]}

        @remote_function(dispatch="slice_dp", collect="flatten")
        def there(self, rows: dict[str, object]) -> list[tuple[int, list[str]]]:
            return [(one, list(rows)) for one in rows["ids"]]



    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        with serve([Maker], port=0, token=sys.argv[1]) as server:
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

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return {**rows, "score": [2 * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def again(self, rows: dict[str, list[int]], name: str = "again") -> dict[str, list[int]]:
        return {**rows, name: [one + 1 for one in rows["score"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def there(self, rows: dict[str, object]) -> list[tuple[int, list[str]]]:
        return []


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


def test_added_columns_are_those_of_the_server(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    plain = {"ids": list(range(5)), "more": [row * 10 for row in range(5)]}
    expected = {**plain, "score": [0, 2, 4, 6, 8]}
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        for rows in (plain, maker.same(plain)):
            graded: Any = join(rows, maker.grade(select(rows, "ids")))
            assert get(maker.same(graded)) == expected
            assert get(graded) == expected


def test_a_stream_over_http_adds_columns(
    serving: Callable[..., AbstractContextManager[str]],
) -> None:
    source: Any = [{"ids": [row, row + 1], "more": [10 * row, 10 * row + 10]} for row in range(0, 20, 2)]
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        seen: list[int] = []
        with stream(source, maker.same, maker.grade, maker.again, ahead=8) as batches:
            for batch in batches:
                value = get(batch)
                seen += value["ids"]
                assert value["more"] == [10 * one for one in value["ids"]]
                assert value["score"] == [2 * one for one in value["ids"]]
                assert value["again"] == [2 * one + 1 for one in value["ids"]]
        assert seen == list(range(20))


def test_rows_of_tables_are_not_sent(
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
        assert next(iter(maker.there(join(made, {"more": [1, 2, 3, 4]})))) == (0, ["ids", "wide", "more"])
        later = stats()[-2:]
        assert uploaded > 400_000
        assert sum(call.driver_sent + call.driver_fetched for call in later) < 10_000
        with pytest.raises(IndexError, match="9"):
            get(maker.same(take(made, [9])))
        with pytest.raises(KeyError, match="strange"):
            get(maker.same(select(made, "strange")))

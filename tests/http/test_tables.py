"""Tables over HTTP: the client makes them, and a call is given their value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceMesh
from twinkle_remote import concat, get, join, map, minibatches, on, remote_class, remote_function, select, session, take  # noqa: A004  named like Python's
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, serve, session

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

        @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
        def peek(self, rows: dict[str, list[int]]) -> list[int]:
            return list(rows["more"])

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

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
    def grade(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return {**rows, "score": [2 * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def peek(self, rows: dict[str, list[int]]) -> list[int]:
        return list(rows["more"])


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

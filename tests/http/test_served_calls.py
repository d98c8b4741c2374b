"""Calls of served components: failures, tables, streams, and components that live at the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.echo import Echo
from tests.http.raw import Raw
from tests.http.subjects import TOKEN, Maker, Odd

from twinkle_mesh import DeviceMesh
from twinkle_remote import (
    concat,
    get,
    join,
    map,  # noqa: A004  named like Python's
    on,
    release,
    session,
    stats,
    stream,
    submit,
    take,
)
from twinkle_remote.errors import DispatchError, PlacementError, RemoteCallError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 60.0
TWO = DeviceMesh.from_sizes(dp_size=2)


@pytest.fixture
def client(address: str) -> Iterator[None]:
    with session("http", address=address, token=TOKEN):
        yield


@pytest.fixture
def maker(client: None) -> Maker:
    return on("two", TWO).create(Maker)


@pytest.mark.usefixtures("client")
def test_text_that_is_no_unicode_ends_neither_a_call_for_ever_nor_the_calls_behind_it() -> None:
    odd = on("one").create(Odd)
    for _ in range(2):
        with pytest.raises(LookupError, match=r"a name.*udcff") as caught:
            get(submit(odd.raises), timeout=SECONDS)
        assert isinstance(caught.value, RemoteCallError)
        with pytest.raises(LookupError, match=r"a name.*udcff"):
            odd.dispatched(1)
        with pytest.raises(DispatchError, match="lone surrogates"):
            get(submit(odd.gives), timeout=SECONDS)
    with stream([[1], [2], [3]], odd.rows, rows=1, ahead=3, on_error="skip") as batches:
        assert [get(batch, timeout=SECONDS) for batch in batches] == [[1], [3]]


def test_a_stream_over_http_adds_columns(maker: Maker) -> None:
    source: Any = [{"ids": [row, row + 1], "more": [10 * row, 10 * row + 10]} for row in range(0, 20, 2)]
    seen: list[int] = []
    with stream(source, maker.same, maker.grade, maker.again, ahead=8) as batches:
        for batch in batches:
            value = get(batch)
            seen += value["ids"]
            assert value["more"] == [10 * one for one in value["ids"]]
            assert value["score"] == [2 * one for one in value["ids"]]
            assert value["again"] == [2 * one + 1 for one in value["ids"]]
    assert seen == list(range(20))


def test_rows_of_tables_are_not_sent(maker: Maker) -> None:
    plain: Any = {"ids": [0, 1, 2, 3], "wide": ["x" * 100_000] * 4}
    made: Any = maker.same(plain)
    uploaded = stats()[-1].driver_sent
    table = take(concat([made, take(made, [1])]), [4, 0, -1])
    assert list(maker.there(table)) == [(1, ["ids", "wide"]), (0, ["ids", "wide"]), (1, ["ids", "wide"])]
    assert next(iter(maker.there(join(made, {"more": [1, 2, 3, 4]})))) == (0, ["ids", "wide", "more"])
    later = stats()[-2:]
    assert uploaded > 400_000
    assert sum(call.driver_sent + call.driver_fetched for call in later) < 10_000
    with pytest.raises(DispatchError, match="HTTP"):
        map(made, lambda rows: rows)


def test_a_live_component_is_called_by_its_id_and_nobody_releases_it(address: str) -> None:
    kinds: Any = {"counter": Counter, "echo": Echo}
    for expected in (11, 12):
        with session("http", address=address, token=TOKEN):
            counter = kinds["counter"](remote_group="two", instance_id="shared")
            assert get(counter.add()) == expected
            with pytest.raises(PlacementError, match="is a Counter"):
                kinds["echo"](remote_group="two", instance_id="shared")
            release(counter)
    assert Raw(address, TOKEN).result("Counter/shared/add") == 13

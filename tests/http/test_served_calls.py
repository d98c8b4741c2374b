"""Calls of served components: their order, failures, tables, streams and loaders."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.echo import Echo
from tests.http.subjects import TOKEN, Batches, Maker, Noted, Odd

from twinkle_data import DataLoader
from twinkle_mesh import DeviceMesh
from twinkle_remote import (
    Lazy,
    concat,
    get,
    join,
    map,  # noqa: A004  named like Python's
    minibatches,
    on,
    release,
    select,
    serve,
    session,
    stats,
    stream,
    submit,
    take,
)
from twinkle_remote.errors import DispatchError, PlacementError, RemoteCallError, TwinkleError
from twinkle_remote.lazy.lazy import call_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN: Any = {"ids": list(range(5)), "more": [row * 10 for row in range(5)]}
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
def test_calls_keep_their_order() -> None:
    noted = on("four").create(Noted)
    results = []
    for number in range(0, 300, 3):
        results.append(submit(noted.note, number))
        results.append(submit(noted.note_list, [number + 1]))
        results.append(submit(noted.note, number=number + 2))
    get(results)
    assert get(noted.notes()) == list(range(300))


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


@pytest.mark.slow
@pytest.mark.usefixtures("client")
def test_a_failure_that_was_seen_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whichever of two calls' answers the client reads first."""
    calls = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Maker)
    taker = on("two", TWO).create(Maker)
    for _ in range(150):
        made = submit(calls.fail, [1, 2, 3, 4])
        with pytest.raises(KeyError):
            get(taker.double(made.hand_over()))
        assert call_of(made).seen
    assert not caplog.messages


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("ahead", [0, 6])
def test_all_ranks_enter_each_chunk_of_a_collective_stage(ahead: int) -> None:
    meeting = on("four", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Maker)
    with stream([[i, i + 1, i + 2] for i in range(0, 9, 3)], meeting.meet, rows=4, ahead=ahead) as batches:
        assert [list(get(batch)) for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14], [16]]


def test_a_loader_stays_here_or_belongs_to_a_served_class(maker: Maker) -> None:
    with pytest.raises(TwinkleError, match="RankLoader"):
        DataLoader([1, 2], batch_size=2, remote_group="two", device_mesh=TWO)
    here = DataLoader(list(range(8)), batch_size=4)
    assert [get(maker.double(list(batch))) for batch in here] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    batches = list(on("two", TWO).create(Batches, 8))
    assert all(isinstance(batch, Lazy) for batch in batches)
    assert [get(maker.double(batch)) for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14]]


def test_tables_of_served_results_are_those_of_their_values(maker: Maker) -> None:
    made = maker.same(PLAIN)
    for table, expected in [
        (take(made, [4, 0, -1]), take(PLAIN, [4, 0, -1])),
        (take(made, slice(0, 0)), take(PLAIN, slice(0, 0))),
        (select(concat([made, PLAIN, made]), "ids"), select(concat([PLAIN, PLAIN, PLAIN]), "ids")),
    ]:
        assert get(table) == expected
        assert get(maker.same(table)) == expected
        assert get(maker.even(table)) == expected
    assert get(maker.even(maker.even(PLAIN))) == PLAIN
    assert get(take(join(made, {"reward": list(range(5))}), [3])) == {"ids": [3], "more": [30], "reward": [3]}
    seen = [row for batch in minibatches(made, 2, seed=1) for row in get(maker.same(batch))["ids"]]
    assert sorted(seen) == PLAIN["ids"]
    for rows in (PLAIN, made):
        graded: Any = join(rows, maker.grade(select(rows, "ids")))
        assert get(maker.same(graded)) == get(graded) == {**PLAIN, "score": [0, 2, 4, 6, 8]}
    with pytest.raises(IndexError, match="5"):
        get(take(made, [5]))
    with pytest.raises(DispatchError, match="HTTP"):
        map(made, lambda rows: rows)


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
    with pytest.raises(IndexError, match="9"):
        get(maker.same(take(made, [9])))
    with pytest.raises(KeyError, match="strange"):
        get(maker.same(select(made, "strange")))


def test_a_live_component_is_called_by_its_id_and_nobody_releases_it(address: str) -> None:
    kinds: Any = {"counter": Counter, "echo": Echo}
    for expected in (11, 12):
        with session("http", address=address, token=TOKEN):
            counter = kinds["counter"](remote_group="two", instance_id="shared")
            assert get(counter.add()) == expected
            with pytest.raises(PlacementError, match="is a Counter"):
                kinds["echo"](remote_group="two", instance_id="shared")
            release(counter)
    url, headers = f"{address}/v1/Counter/shared/add", {"Authorization": f"Bearer {TOKEN}"}
    with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=60.0) as answer:
        assert json.loads(answer.read())["result"] == 13


def test_what_is_no_class_and_no_component_is_refused(threads: None) -> None:
    with pytest.raises(TypeError, match="remote classes and components"):
        serve([5], port=0, token=TOKEN)

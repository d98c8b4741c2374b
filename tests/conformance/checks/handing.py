"""Checks: how lazy results, and tables of them, move from one component to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.harness import checks_of, needs, plain, raises
from tests.conformance.subjects.echo import Echo, Holder, Ledger, Reducer
from tests.conformance.subjects.faults import Faulty
from tests.conformance.subjects.layouts import EIGHT, FOUR, TWO

from twinkle_remote import Lazy, Replicate, concat, get, join, select, stats, submit, take
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conformance.harness import Harness

    from twinkle_mesh import DeviceMesh


def handing_over_gives_each_rank_the_same_rows(harness: Harness) -> None:
    """From every mesh to every mesh and for every length, each rank receives the same rows lazily and eagerly."""
    lengths = (0, 1, 5, 8)
    batches = [{"rows": list(range(length)), "tag": "t"} for length in lengths]
    wanted = []
    for target in (*FOUR.values(), None):
        sink = harness.build(Echo, 4, mesh=target)
        eager = [harness.each(4, sink.given(batch, key=[0] * len(batch["rows"]))) for batch in batches]
        by_worker = [harness.each(4, sink.given_by_worker(batch["rows"])) for batch in batches]
        wanted.append((sink, eager, by_worker))
    for source in (*EIGHT.values(), None):
        echo = harness.build(Echo, 8, mesh=source)
        made = [submit(echo.rows, batch) for batch in batches]
        made_by_worker = [submit(echo.rows_by_worker, batch["rows"]) for batch in batches]
        for sink, eager, by_worker in wanted:
            given = [sink.given(lazy, key=[0] * length) for lazy, length in zip(made, lengths, strict=True)]
            assert [harness.each(4, lazy) for lazy in given] == eager
            given = [sink.given_by_worker(lazy) for lazy in made_by_worker]
            assert [harness.each(4, lazy) for lazy in given] == by_worker


def handing_over_takes_unequal_lengths(harness: Harness) -> None:
    """Results of different lengths, 0 among them, are divided again, into equal parts."""
    for target in FOUR.values():
        sink = harness.build(Echo, 4, mesh=target)
        echo = harness.build(Echo, 8, mesh=EIGHT["dp8"])
        lazy = submit(echo.unequal, [0, 5, 0, 0, 3, 1, 0, 0])
        rows = [5, 5, 5, 5, 5, 3, 3, 3, 1]
        assert harness.each(4, sink.given(lazy)) == harness.each(4, sink.given(rows))
        assert sink.rows(submit(echo.unequal, [0, 5, 0, 0, 3, 1, 0, 0])) == rows
        assert sink.rows(submit(echo.unequal, [0] * 8)) == []


def handing_over_works_at_any_depth(harness: Harness) -> None:
    """Lazy results inside dicts, lists, tuples and dataclasses are found, and split where a value would be."""
    echo, sink = harness.build(Echo, 4, mesh=FOUR["dp4"]), harness.build(Echo, 2, mesh=TWO)
    for wrap in (
        lambda rows: {"a": {"b": rows}, "c": [1, 2, 3, 4]},
        lambda rows: Holder(rows),
        lambda rows: {"holder": Holder({"rows": rows})},
        lambda rows: {"kept": Replicate([rows, rows])},
    ):
        lazy = wrap(submit(echo.rows, [5, 6, 7, 8]))
        assert harness.each(2, sink.given(lazy)) == harness.each(2, sink.given(wrap([5, 6, 7, 8])))
        assert harness.each(2, sink.given_whole(lazy)) == harness.each(2, sink.given_whole(wrap([5, 6, 7, 8])))
    many = [submit(echo.rows, [1, 2]), submit(echo.rows, [3])]
    if not harness.served:  # a client sends names from anywhere
        for deep in ([{"rows": many[0]}], [[many[0]]]):
            with raises(DispatchError, "get("):
                plain(sink.given_whole(deep))
    assert harness.each(2, sink.given(many)) == harness.each(2, sink.given([[1, 2], [3]]))
    assert harness.each(2, sink.given_whole((many[0], {"k": many[1]}))) == harness.each(
        2, sink.given_whole(([1, 2], {"k": [3]}))
    )


def handing_over_keeps_every_collect(harness: Harness) -> None:
    """The next call receives the result of "none", "first", "mean", "sum", "last_pp" or a callable collect."""
    mesh = FOUR["pp2 dp2"]
    echo, reducer = harness.build(Echo, 4, mesh=mesh), harness.build(Reducer, 4, mesh=mesh)
    sink = harness.build(Echo, 2, mesh=TWO)
    for call in (
        lambda: submit(echo.ranks),
        lambda: submit(echo.rank_of_first),
        lambda: submit(echo.ranks_of_last_stage),
        lambda: submit(echo.by_function),
        lambda: submit(echo.nothing),
        lambda: submit(echo.two_columns, [1, 2, 3]),
        lambda: submit(reducer.total, [1.0, 2.0]),
        lambda: submit(reducer.own_keys),
    ):
        value = call().result()
        if isinstance(value, tuple | list | dict) and len(value) != 2:
            assert harness.each(2, sink.given(call())) == harness.each(2, sink.given(value)), value
        assert harness.each(2, sink.given_whole(call())) == harness.each(2, sink.given_whole(value)), value


def a_failed_producer_fails_its_consumers(harness: Harness) -> None:
    """A call with a failed lazy result as argument does not run; it raises the error of the producer."""
    faulty, sink = harness.build(Faulty, 4, mesh=FOUR["dp4"]), harness.build(Faulty, 2, mesh=TWO)
    lazy = submit(faulty.broken_rows, [1, 2, 3, 4])
    takes: Any = sink.takes
    next_one = submit(takes, lazy)
    last = submit(takes, next_one)
    for consumer in (last, next_one):
        with raises(KeyError, "Faulty.takes did not run", "Faulty.broken_rows failed on", f"{harness.groups[4]}[0/"):
            consumer.result()
    assert harness.each(2, sink.count()) == [0] * harness.workers(2)


@needs(apart=True)
def results_move_from_worker_to_worker(harness: Harness) -> None:
    """A lazy argument is not fetched to the driver, and each consumer fetches only its rows."""
    source, target = harness.build(Echo, 4, mesh=FOUR["dp4"]), harness.build(Echo, 2, mesh=TWO)
    rows = [bytes(1000) for _ in range(400)]
    submit(target.sizes, submit(source.rows, rows)).wait()
    made, used = stats()[-2:]
    assert (made.method, used.method) == ("Echo.rows", "Echo.sizes")
    assert made.driver_fetched == 0 and sum(used.worker_fetched.values()) <= 1.05 * 400 * 1000 + 4096, used


def lazy_collect_and_sync_say_when(harness: Harness) -> None:
    """`lazy_collect=False` gives the value itself; `sync=True` returns when every worker is done."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    assert type(echo.at_once([1, 2])) is list
    done = echo.after_all([1, 2])
    assert done == [1, 2] and (harness.in_process or (isinstance(done, Lazy) and done.done()))


def _ledger(harness: Harness, size: int, mesh: DeviceMesh | None) -> Any:
    return harness.build(Ledger, size, mesh=mesh)


def tables_are_what_their_values_are(harness: Harness) -> None:
    """`take`, `concat`, `select` and `join` of lazy rows: fetched, or given to the next call on any mesh."""
    for source, target in ((EIGHT["dp2 pp2 tp2"], FOUR["dp4"]), (EIGHT["irregular"], FOUR["pp2 dp2"])):
        maker, sink = _ledger(harness, 8, source), harness.build(Echo, 4, mesh=target)
        lazy, value = submit(maker.make, list(range(9))), plain(maker.make(list(range(9))))
        tables: Sequence[Callable[[Any], Any]] = (
            lambda rows: take(rows, [8, 0, -2, 3, 3]),
            lambda rows: take(rows, slice(7, 1, -2)),
            lambda rows: take(rows, []),
            lambda rows: concat([rows, take(rows, [4]), rows]),
            lambda rows: select(rows, "ids"),
            lambda rows: join(rows, {"score": [10 * row for row in range(9)]}),
            lambda rows: take(join(select(rows, "note", "ids"), select(rows, "wide")), [5, 5, 1]),
        )
        for table in tables:
            assert get(table(lazy)) == table(value)
            assert harness.each(4, sink.given(table(lazy))) == harness.each(4, sink.given(table(value)))
        with raises(IndexError, "9"):
            get(take(lazy, [9]))
        with raises(KeyError, "other"):
            get(select(lazy, "other"))


@needs(apart=True)
def columns_that_are_not_read_do_not_move(harness: Harness) -> None:
    """The next call fetches the columns that it reads, from the workers that made them."""
    maker, ledger = _ledger(harness, 4, FOUR["dp4"]), _ledger(harness, 2, TWO)
    made: Any = submit(maker.make, list(range(200)), width=20_000)
    graded = join(made, submit(ledger.grade, select(made, "ids")))
    assert get(ledger.pairs(select(graded, "ids", "score")))[-1] == (199, 398, False)
    for used in stats()[-2:]:
        assert used.method.startswith("Ledger."), used
        assert sum(used.worker_fetched.values()) < 0.1 * 200 * 20_000, used


CHECKS = checks_of(globals())

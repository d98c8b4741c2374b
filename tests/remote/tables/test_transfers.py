"""What each task reads of lazy arguments: a lazy and an eager argument give each rank the same rows."""

from __future__ import annotations

import pickle
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.made_calls import made_call

from twinkle_mesh import balanced_slice
from twinkle_remote import DispatchError
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.protocol import Outcome, Task, TransferPlan
from twinkle_remote.protocol.backend import Memory
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import rows_of, take
from twinkle_remote.tables.nodes import (
    Combined,
    Concat,
    Input,
    Join,
    LazyArgument,
    LazySlot,
    Node,
    Select,
    StoredRows,
    Take,
    below,
    leaves,
)
from twinkle_remote.tables.plan import count, part, resolve
from twinkle_remote.tables.read import read
from twinkle_remote.worker.worker import TaskInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.tables.nodes import Columns, Rows


class Counting(Memory):
    """A store that notes which rows were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[int, int]] = []

    def get(
        self, ref: object, rows: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        assert isinstance(rows, range)
        self.read.append((rows.start, rows.stop))
        return super().get(ref, rows, columns, timeout)


def outcomes_of(parts: Sequence[Any]) -> list[Outcome]:
    return [
        Outcome(rank, value, rows=rows_of(value), is_list=isinstance(value, list), rows_given=rows_of(value))
        for rank, value in enumerate(parts)
    ]


def result(count: int, how: Any = "rows", first: int = 0) -> Combined:
    """The result of a call on some ranks, whose outcomes begin at a place."""
    return Combined(tuple([StoredRows(Input(first + index)) for index in range(count)]), how)


def first_value(values: list[Any], mesh: object) -> Any:
    """A callable collect, of whose value nobody knows the rows before it is there."""
    return values[0]


def share(parts: list[Any], index: int, shares: int, store: Memory, **options: Any) -> Any:
    """What one share is given of a lazy result that these parts make."""
    node = result(len(parts), options.pop("how", "rows"))
    plan = TransferPlan("Sink.take", (LazyArgument(node, split=True),), ((0,),) * shares, shares, **options)
    slots: Any = ({"in": LazySlot(0, split=True)},)
    task = Task("method", "i", "Sink.take", "take", slots, slots=True, share=(index, shares))
    reads = pickle.loads(pickle.dumps(plan)).transfers(outcomes_of(parts))[index]
    return TaskInputs(task, reads, store).values()[0][0]["in"]


@given(data=st.data(), lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5), shares=st.integers(1, 6))
def test_lazy_and_eager_give_each_rank_the_same(
    data: st.DataObject,
    lengths: list[int],
    shares: int,
    batches: Callable[[int], st.SearchStrategy[Any]],
    same: Callable[[Any, Any], bool],
) -> None:
    total = sum(lengths)
    whole = data.draw(batches(total))
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    parts = [take(whole, range(start, start + rows)) for start, rows in zip(starts, lengths, strict=True)]
    spec = FunctionSpec(dispatch="slice_dp")
    eager = dispatch(made_call("Sink.take", spec, range(shares), a=concat(parts)), Memory().put)
    for index in range(shares):
        store = Counting()
        assert same(share(parts, index, shares, store), eager.arguments[index][0][0])
        assert sum(stop - start for start, stop in store.read) == (eager.rows(index) or 0)


@given(rows=st.integers(0, 20), shares=st.integers(1, 8))
def test_rows_cut_on_a_worker_are_those_of_the_plan(rows: int, shares: int) -> None:
    value = list(range(rows))
    for index in range(shares):
        mine = value[balanced_slice(rows, shares, index)]
        assert share([value], index, shares, Memory()) == mine
        assert share([value], index, shares, Memory(), how=first_value) == mine


@pytest.mark.parametrize("value", [None, 3, "text", {"loss": 1.0}, ()])
def test_values_without_rows_go_whole(value: Any) -> None:
    assert [share([value], index, 2, Memory(), how="one") for index in range(2)] == [value, value]


def test_a_list_of_results_is_divided_as_the_list_that_it_is() -> None:
    assert [share(["a", "b", "c"], index, 2, Memory(), how="list") for index in range(2)] == [["a", "b"], ["c"]]


def test_slice_divides_lists_alone() -> None:
    assert share([[1, 2], [3]], 1, 2, Memory(), lists_only=True) == [3]
    assert share([([1, 2],), ([3],)], 1, 2, Memory(), lists_only=True) == ([1, 2, 3],)


def test_lengths_have_to_agree() -> None:
    with pytest.raises(DispatchError, match=r"Sink\.take.* 3 .* 5; .*Replicate"):
        share([[1, 2], [3]], 0, 2, Memory(), total=5)


@pytest.mark.parametrize("sources", [8, 1024])
def test_a_task_names_only_what_it_reads(sources: int) -> None:
    arguments = tuple([LazyArgument(result(sources, first=i * sources), split=True) for i in range(8)])
    plan = TransferPlan("Sink.take", arguments, (tuple(range(8)),) * 8, 8)
    transfers = plan.transfers([Outcome(i, [0], rows=1, is_list=True) for i in range(8 * sources)])
    named = [
        sum(len(list(leaves(value))) for value in one.values if not isinstance(value, Exception)) for one in transfers
    ]
    assert named == [sources] * 8  # each of 8 shares reads an eighth of each of 8 results


def value_of(node: Node) -> Any:
    return read(node, lambda payload, rows, names: Memory().get(payload, rows, names)[0])


def nodes_of(node: Node) -> int:
    seen: dict[int, Node] = {}
    open_ones = [node]
    while open_ones:
        one = open_ones.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            open_ones += below(one)
    return len(seen)


def test_each_of_many_readers_of_many_pieces_looks_at_its_own() -> None:
    table = resolve(result(1024), [Outcome(i, [i], rows=1, is_list=True) for i in range(1024)])
    order = random.Random(0).sample(range(1024), 1024)
    for node, numbers in ((table, list(range(1024))), (part(table, tuple(order)), order)):
        cut = [part(node, range(reader, reader + 1)) for reader in range(1024)]
        assert [nodes_of(one) for one in cut] == [2] * 1024
        assert [value_of(one) for one in cut] == [[number] for number in numbers]


def test_thirty_operations_deep_are_planned_and_read_in_a_second() -> None:
    choose = random.Random(1)
    columns = [{"ids": [2 * i, 2 * i + 1], "x": [i, -i], "y": [0, i]} for i in range(16)]
    outcomes = [Outcome(i, one, rows=2, columns=tuple(one)) for i, one in enumerate(columns)]
    for kinds in (("join",), ("take",), ("concat",), ("join", "take", "concat", "select")):
        node: Node = result(16)
        plain = {name: [row for one in columns for row in one[name]] for name in ("ids", "x", "y")}
        for _ in range(30):
            kind = choose.choice(kinds)
            if kind == "join":
                node = Join((node, Select(node, ("x",))))
            elif kind == "take":
                order = choose.sample(range(32), 32)
                node, plain = (
                    Take(node, tuple(order)),
                    {name: [own[row] for row in order] for name, own in plain.items()},
                )
            elif kind == "concat":
                cut = choose.randrange(1, 32)
                node = Concat((Take(node, slice(cut, None)), Take(node, slice(0, cut))))
                plain = {name: [*own[cut:], *own[:cut]] for name, own in plain.items()}
            else:
                node = Join((node, Select(node, ("ids", "y"))))
        began = time.process_time()
        table = resolve(node, outcomes)
        assert count(table) == 32
        parts = [value_of(part(table, range(8 * reader, 8 * reader + 8))) for reader in range(4)]
        assert time.process_time() - began < 1.0, kinds
        assert concat(parts) == plain, kinds

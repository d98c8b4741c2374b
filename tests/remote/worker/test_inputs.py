"""Handing over: a lazy and an eager argument give each rank the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.made_calls import made_call

from twinkle_mesh import plan_transfer
from twinkle_remote import DispatchError
from twinkle_remote.backends.memory import Memory
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.tables.hand_over import plan_for_task
from twinkle_remote.protocol import HandedSlot, HandOver, Outcome, Share, Task
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import rows_of, take
from twinkle_remote.worker.inputs import TaskInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Counting(Memory):
    """A store that notes which rows were read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int]] = []

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        self.read.append((start or 0, (rows_of(ref) or 0) if stop is None else stop))
        return super().get(ref, start, stop)


def outcomes(parts: Sequence[Any], total: int | None = None) -> list[Outcome]:
    return [
        Outcome(rank, part, rows=rows_of(part), is_list=isinstance(part, list), rows_given=rows_of(part), total=total)
        for rank, part in enumerate(parts)
    ]


def share(parts: list[Any], index: int, count: int, store: Memory, **options: Any) -> Any:
    """What part `index` of `count` is given of a lazy result that these parts make."""
    how = options.pop("how", "rows")
    total = options.pop("padded_total", None)
    task = Task(
        "method",
        "i",
        "Sink.take",
        "take",
        ({"in": HandedSlot(0, split=True)},),
        slots=True,
        share=Share(index, count),
        handed=(HandOver(0, len(parts), how, padded=total is not None, split=True),),
        **options,
    )
    given = plan_for_task(task, outcomes(parts, total))
    return TaskInputs(task, given, store).values()[0][0]["in"]


@given(
    data=st.data(),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    count=st.integers(1, 6),
    uneven=st.sampled_from([None, None, "pad", "drop", "strict"]),
)
def test_lazy_and_eager_give_each_rank_the_same(
    data: st.DataObject,
    lengths: list[int],
    count: int,
    uneven: Any,
    batches: Callable[[int], st.SearchStrategy[Any]],
    same: Callable[[Any, Any], bool],
) -> None:
    total = sum(lengths)
    whole = data.draw(batches(total))
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    parts = [take(whole, start, start + rows) for start, rows in zip(starts, lengths, strict=True)]
    spec = FunctionSpec(dispatch="slice_dp", uneven=uneven)
    refused = (uneven and not total) or (uneven == "strict" and total % count) or (uneven == "drop" and total < count)
    if refused:
        with pytest.raises(DispatchError) as lazily:
            share(parts, 0, count, Memory(), uneven=uneven)
        with pytest.raises(DispatchError) as eagerly:
            dispatch(made_call("Sink.take", spec, range(count), a=whole), Memory().put)
        assert str(lazily.value) == str(eagerly.value)
        return
    eager = dispatch(made_call("Sink.take", spec, range(count), a=join(parts)), Memory().put)
    for index in range(count):
        store = Counting()
        assert same(share(parts, index, count, store, uneven=uneven), eager.arguments[index][0][0])
        fetched = sum(stop - start for start, stop in store.read)
        assert fetched == (eager.rows(index) or 0)
        if uneven is None:
            plan = plan_transfer(len(lengths), count, lengths)[index]
            assert store.read == ([(piece.start, piece.stop) for piece in plan] or [(0, 0)])


def test_padding_of_the_producer_is_not_handed_over() -> None:
    parts = [[1, 2], [3, 4], [5, 1]]
    assert [share(parts, index, 2, Memory(), padded_total=5) for index in range(2)] == [[1, 2, 3], [4, 5]]


@pytest.mark.parametrize("value", [None, 3, "text", {"loss": 1.0}, ()])
def test_values_without_rows_go_whole(value: Any) -> None:
    task_parts = [value]
    got = [share(task_parts, index, 2, Memory(), how="one") for index in range(2)]
    assert got == [value, value]


def test_a_list_of_results_is_divided_as_the_list_that_it_is() -> None:
    parts = ["a", "b", "c"]
    assert [share(parts, index, 2, Memory(), how="list") for index in range(2)] == [["a", "b"], ["c"]]


def test_slice_divides_lists_alone() -> None:
    assert share([[1, 2], [3]], 1, 2, Memory(), lists_only=True) == [3]
    assert share([(1, 2), (3,)], 1, 2, Memory(), lists_only=True) == (1, 2, 3)


def test_lengths_have_to_agree() -> None:
    with pytest.raises(DispatchError, match=r"Sink\.take.* 3 .* 5; .*Replicate"):
        share([[1, 2], [3]], 0, 2, Memory(), total=5)

"""A table of rows of many calls does all that a lazy result does, and keeps only the results that it names."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    CallTimeoutError,
    Lazy,
    NotInitializedError,
    Replicate,
    concat,
    get,
    on,
    remote_class,
    remote_function,
    session,
    submit,
    take,
)
from twinkle_remote.lazy.lazy import call_of, source_of
from twinkle_remote.lazy.table import rows_of_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_remote.call.pending import PendingCall

OPEN = threading.Event()
TWO = DeviceMesh.from_sizes(dp_size=2)


@dataclass
class Holder:
    """Rows inside of a dataclass."""

    rows: Any


class Big(list[Any]):
    """A list to which a weak reference is possible."""


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def later(self, rows: Any) -> Any:
        assert OPEN.wait(60.0)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=0.2)
    def late(self, rows: Any) -> Any:
        assert OPEN.wait(60.0)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def fails(self, rows: Any) -> Any:
        raise KeyError(f"no {rows[0]}")

    @remote_function(dispatch="slice_dp", collect="flatten")
    def columns(self, rows: list[int]) -> tuple[list[int], list[int]]:
        return rows, rows

    @remote_function(dispatch="all", collect="first")
    def big(self) -> Any:
        return Big(range(4))

    @remote_function(dispatch="slice_dp", collect="none")
    def given(self, value: Any, rest: Any = None) -> Any:
        return value, rest

    @remote_function(dispatch="all", collect="first")
    def whole(self, value: Any) -> Any:
        return value


@pytest.fixture
def makers() -> Iterator[tuple[Maker, Maker]]:
    """Components on 2 and on 3 data ranks."""
    OPEN.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU"), DeviceGroup("three", 3, "CPU")]):
        yield on("two", TWO).create(Maker), on("three", DeviceMesh.from_sizes(dp_size=3)).create(Maker)
        OPEN.set()


def call(lazy: Any) -> PendingCall:
    return call_of(lazy)


def rows(lazy: Any, rank: int, start: int, stop: int) -> Any:
    """Rows of what one rank returned."""
    return take(rows_of_ranks(call(lazy), [rank]), slice(start, stop))


def test_it_does_what_a_lazy_result_does(makers: tuple[Maker, Maker]) -> None:
    two, three = makers
    first, second = submit(two.rows, [1, 2, 3, 4]), submit(three.rows, [5, 6, 7])
    lazy = concat([rows(second, 2, 0, 1), rows(first, 0, 1, 2), rows(first, 1, 0, 2), rows(second, 0, 0, 1)])
    want = [7, 2, 3, 4, 5]
    lazy.wait(60.0)
    assert lazy.done() and "a table of Maker.rows" in repr(lazy) and repr(lazy).endswith("done>")
    assert lazy.result() == want and len(lazy) == 5 and list(lazy) == want and lazy[1:3] == [2, 3] and lazy == want
    assert get({"a": [lazy]}) == {"a": [want]} and type(lazy) is Lazy

    async def use() -> Any:
        return await concat([rows(first, 0, 0, 2)])

    assert asyncio.run(use()) == [1, 2]
    assert two.whole(lazy) == want and two.whole({"x": [Holder(lazy)]}).result() == {"x": [Holder(want)]}
    plain, handed = get(two.given({"x": want}, Holder(want))), get(two.given({"x": lazy}, Holder(lazy)))
    assert handed == plain
    assert get(three.given([lazy, first, lazy])) == get(three.given([want, [1, 2, 3, 4], want]))
    assert get(three.given(Replicate(lazy), want)) == get(three.given(Replicate(want), want))
    with pytest.raises(ValueError, match="values to unpack"):
        call_of(lazy)
    assert set(source_of(lazy).calls) == {call(first), call(second)}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_it_is_handed_over_as_the_rows_that_it_stands_for(data: st.DataObject) -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU"), DeviceGroup("three", 3, "CPU")]):
        two, three = on("two", TWO).create(Maker), on("three", DeviceMesh.from_sizes(dp_size=3)).create(Maker)
        pieces, want = [], []
        OPEN.clear()
        pending = data.draw(st.booleans())
        for number in range(data.draw(st.integers(1, 4))):
            values = [100 * number + row for row in range(data.draw(st.integers(0, 6)))]
            made = submit(two.later if pending else two.rows, values)
            rank = data.draw(st.integers(0, 1))
            own = values[TWO.get_slice(len(values), rank)]
            start, stop = sorted((data.draw(st.integers(0, len(own))), data.draw(st.integers(0, len(own)))))
            pieces.append(rows(made, rank, start, stop))
            want += own[start:stop]
        lazy = concat(pieces)
        used = submit(three.given, lazy)
        OPEN.set()
        assert used.result() == get(three.given(want))
        assert get(three.whole(lazy)) == want == lazy.result()


def test_it_waits_for_all_and_tells_the_call_that_failed(makers: tuple[Maker, Maker]) -> None:
    two, three = makers
    good, held, bad = submit(three.rows, [1, 2, 3]), submit(two.later, [4, 5]), submit(three.fails, [6, 7, 8])
    lazy = concat([rows(good, 0, 0, 1), rows(held, 0, 0, 1), rows(bad, 1, 0, 1)])
    with pytest.raises(KeyError, match=r"Maker\.fails failed on three\[") as caught:
        lazy.wait(60.0)  # at once, although another call is still running
    assert "no 6" in str(caught.value) or "no 7" in str(caught.value) or "no 8" in str(caught.value)
    assert not call(held).done() and "failed" in repr(lazy)
    with pytest.raises(KeyError, match=r"Maker\.whole did not run.*Maker\.fails"):
        three.whole(lazy).result(60.0)


@pytest.mark.slow
def test_it_is_late_when_a_call_is(makers: tuple[Maker, Maker]) -> None:
    two, three = makers
    held, late = submit(two.later, [4, 5]), submit(three.late, [1, 2, 3])
    lazy = concat([rows(held, 0, 0, 1), rows(late, 0, 0, 1)])
    with pytest.raises(CallTimeoutError, match=r"Maker\.late on three"):
        lazy.wait()
    lazy = concat([rows(held, 0, 0, 1), rows(submit(two.later, [4, 5]), 0, 0, 1)])
    with pytest.raises(CallTimeoutError, match=r"Maker\.later on two\[2\].*0\.1 s"):
        lazy.wait(0.1)
    OPEN.set()
    lazy.wait(60.0)
    assert lazy.result() == [4, 4]


@pytest.mark.slow
def test_it_keeps_the_results_that_it_names(makers: tuple[Maker, Maker]) -> None:
    made = submit(makers[0].big)
    made.wait()
    seen = weakref.ref(call(made).outcome(0).payload)
    lazy = concat([rows(made, 0, 1, 3)])
    del made
    gc.collect()
    assert seen() is not None and lazy.result() == [1, 2]
    del lazy
    gc.collect()
    assert seen() is None


def test_rows_of_parts_and_of_nothing(makers: tuple[Maker, Maker]) -> None:
    two, _ = makers
    parts, made = submit(two.columns, [1, 2]), submit(two.rows, [1, 2, 3])
    assert concat([rows(parts, 1, 0, 1)]).result() == tuple(part[1:] for part in parts.result())
    assert concat([rows(made, 0, 0, 0)]).result() == []


def test_after_the_session_it_says_so() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        made = submit(on("two", TWO).create(Maker).rows, [1, 2])
        lazy = concat([rows(made, 0, 0, 1), rows(made, 1, 0, 1)])
    with pytest.raises(NotInitializedError):
        lazy.result()

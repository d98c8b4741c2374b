"""Dispatch: what is collected is what was dispatched, on every mesh, for every length and type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.made_calls import made_call

from twinkle_mesh import DeviceMesh
from twinkle_remote import DispatchError
from twinkle_remote.call.collect import combine, combined_by, ranks_read
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.protocol.backend import Memory
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.rows.cut import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable


def call_identity(spec: FunctionSpec, mesh: DeviceMesh | None, ranks: list[int], value: Any) -> tuple[list[Any], Any]:
    """What each rank is given, and what is collected when each gives it back."""
    shares = dispatch(made_call("Echo.rows", spec, ranks, mesh, value=value), Memory().put)
    given = [shares.arguments[index][0][0] for index in shares.of_rank]
    read = ranks_read(spec, ranks, mesh, each=bool(shares.each))
    back = combine(
        combined_by(spec, ranks, mesh, "Echo.rows"),
        [given[ranks.index(rank)] for rank in read],
    )
    return given, back


@pytest.mark.slow
@given(data=st.data(), rows=st.integers(0, 13))
@pytest.mark.parametrize("how", ["slice_dp", "slice"])
def test_collecting_what_was_dispatched_gives_it_back(
    data: st.DataObject,
    rows: int,
    how: Any,
    meshes: st.SearchStrategy[DeviceMesh],
    batches: Callable[[int], st.SearchStrategy[Any]],
    same: Callable[[Any, Any], bool],
) -> None:
    mesh = data.draw(st.none() | meshes)
    ranks = list(range(3 if mesh is None else mesh.world_size))
    value = data.draw(batches(rows))
    if how == "slice":
        value = list(range(rows))
    given_to, back = call_identity(FunctionSpec(dispatch=how, collect="flatten"), mesh, ranks, value)
    assert same(back, value)
    sizes = [rows_of(part) for part in given_to]
    if mesh is not None and how == "slice_dp":
        assert sizes == [len(range(rows)[mesh.get_slice(rows, rank)]) for rank in ranks]
        assert all(same(given_to[rank], given_to[peer]) for rank in ranks for peer in mesh.same_data(rank))
    assert all(size is not None for size in sizes)


@pytest.mark.parametrize(
    ("spec", "args", "message"),
    [
        (FunctionSpec(dispatch="slice_dp"), ([1, 2], [1]), r"f: .*a has 2, b has 1; mark .* Replicate"),
        (FunctionSpec(dispatch="slice_dp"), ({"x": [1], "y": [1, 2]}, 0), r"a\['x'\] has 1, a\['y'\] has 2"),
        (FunctionSpec(dispatch="slice_dp", split=("a",)), (3, [1]), "split= names a, but int 3 has no rows"),
        (FunctionSpec(dispatch="all"), (iter([1]), 0), "f: a list_iterator can be neither divided nor sent"),
        (FunctionSpec(), ([(row for row in "ab")], 0), "f: a generator can be neither"),
    ],
)
def test_what_cannot_be_divided_says_why(spec: FunctionSpec, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DispatchError, match=message):
        dispatch(made_call("f", spec, [0, 1], a=args[0], b=args[1]), Memory().put)


def test_what_nobody_divides_is_one_share() -> None:
    call = replace(made_call("f", FunctionSpec(), range(8), a=5), kwargs={"b": "x"})
    shares = dispatch(call, Memory().put)
    assert shares.of_rank == [0] * 8 and shares.arguments == [((5,), {"b": "x"})] and shares.count is None


@pytest.mark.parametrize("ranks_of_a_share", [1, 2])
def test_rows_for_one_rank_travel_together_and_those_for_several_are_stored_once(ranks_of_a_share: int) -> None:
    stored: list[Any] = []
    small, large, twice, whole = np.zeros(50_000), np.zeros(1 << 20), np.ones(50_000), np.full(50_000, 2.0)
    rows = [small + row for row in range(4)] + [large] * 4
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=ranks_of_a_share)
    spec = FunctionSpec(dispatch="slice_dp", replicate=("whole",))
    call = made_call("f", spec, range(mesh.world_size), mesh, a=rows, b=[twice] * 8, whole=[whole])

    def put(value: Any) -> tuple[object, int]:
        stored.append(value)
        return len(stored), value.nbytes

    shares = dispatch(call, put)
    assert len({id(value) for value in stored}) == len(stored)
    alone = rows[:4] if ranks_of_a_share > 1 else []
    of_several = {id(large), id(twice), id(whole)}
    assert list(map(id, alone)) == [id(value) for value in stored if id(value) not in of_several]
    assert of_several <= {id(value) for value in stored}
    inside = [[type(row) is np.ndarray for row in share[0][1]] for share in shares.arguments]
    first = ranks_of_a_share == 1  # the second rank's task would copy what the first one's has
    assert inside == [[first] * 4, [False] * 4]
    assert not any(type(share[0][2][0]) is np.ndarray for share in shares.arguments)

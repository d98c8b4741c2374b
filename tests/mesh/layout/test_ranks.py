from __future__ import annotations

import pickle

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh

law = settings(settings.get_profile("mesh"))


@law
@given(st.from_type(DeviceMesh), st.data())
def test_ranks_behave_like_a_tuple(mesh: DeviceMesh, data: st.DataObject) -> None:
    ranks = mesh.ranks
    held = tuple(ranks)
    place = data.draw(st.integers(-len(held), len(held) - 1))
    part = data.draw(st.slices(len(held)))
    assert ranks[place] == held[place]
    assert ranks[part] == held[part]
    assert ranks == held == ranks
    assert ranks == list(held)
    assert hash(ranks) == hash(held)
    assert list(reversed(ranks)) == list(reversed(held))
    assert held[place] in ranks
    assert pickle.loads(pickle.dumps(ranks)) == ranks
    for outside in (len(held), -len(held) - 1):
        with pytest.raises(IndexError, match="outside"):
            ranks[outside]


def test_ranks_are_equal_as_factors_and_as_a_table() -> None:
    arithmetic = DeviceMesh.from_sizes(dp_size=4).ranks
    listed = DeviceMesh.from_ranks([2, 0, 1, 3], "dp").same_data(2)
    assert arithmetic == range(4)
    assert listed == [2]
    assert arithmetic != [0, 1, 2]
    assert arithmetic != listed
    assert arithmetic != "0123"
    assert DeviceMesh.from_ranks([2, 0, 1, 3], "dp").ranks == [2, 0, 1, 3]


def test_ranks_and_groups_are_shown_in_full_or_folded() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=64, tp_size=2)
    assert repr(mesh.group("tp", 5)) == "[4, 5]"
    assert repr(mesh.group("dp", 5)) == "[1, 3, 5, ..., 127] (64 ranks)"
    assert repr(mesh.groups("dp")).startswith("[[0, 2, 4, ..., 126] (64 ranks), [1,")
    assert repr(mesh.groups("tp")) == "[[0, 1], [2, 3], ..., [126, 127]] (64 groups)"


def test_groups_behave_like_a_tuple() -> None:
    groups = DeviceMesh.from_sizes(dp_size=2, tp_size=2).groups("tp")
    assert groups == [[0, 1], [2, 3]]
    assert groups != [[0, 1]]
    assert groups != 3
    assert groups[-1] == [2, 3]
    assert list(map(list, groups[:1])) == [[0, 1]]
    assert hash(groups) == hash(((0, 1), (2, 3)))

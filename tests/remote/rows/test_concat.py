"""Mappings of other columns: rows have None in the columns that they lack, wherever values are joined."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote import CollectError
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import take

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NAMES = ("prompt", "answer", "tests", "tools")
rows = st.lists(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9), min_size=1), max_size=9)


def columns_of(given: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns of rows that are mappings; None where a row has no such key, as datasets has it."""
    names = dict.fromkeys(name for row in given for name in row)
    return {name: [row.get(name) for row in given] for name in names}


@given(rows, st.lists(st.integers(0, 9), max_size=4), st.sampled_from([dict, OrderedDict, UserDict]), st.booleans())
def test_parts_of_rows_join_to_the_columns_of_all(
    given_rows: list[dict[str, int]], cuts: list[int], kind: Callable[..., Any], nested: bool
) -> None:
    edges = [0, *sorted(min(cut, len(given_rows)) for cut in cuts), len(given_rows)]
    parts: list[Any] = [kind(columns_of(given_rows[a:b])) for a, b in pairwise(edges)]
    want: Any = kind(columns_of(given_rows))
    if nested:
        parts = [{"more": part, "row": list(range(a, b))} for part, a, b in zip(parts, edges, edges[1:], strict=False)]
        want = {"more": want, "row": list(range(len(given_rows)))}
    joined = concat(parts)
    assert joined == want and type(joined) is type(want)
    assert list(joined) == list(want)
    assert concat([concat(parts[:2]), *parts[2:]]) == want, "in any steps"
    assert concat([take(joined, range(2)), take(joined, range(2, len(given_rows)))]) == want


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([{"a": [1], "b": np.array([2])}, {"a": [3, 4]}], "ndarray"),
        ([{"a": [3, 4]}, {"a": [1], "b": np.array([2])}], "ndarray"),
        ([{"a": [1], "b": {"c": [2]}}, {"a": [3]}], "dict"),
        ([{"a": [1], "loss": 2.0}, {"a": [3]}], "float"),
        ([{"a": [1], "b": [1]}, {"loss": 2.0}], "a value of no rows"),
    ],
)
def test_where_none_cannot_stand_it_is_refused(values: list[Any], name: str) -> None:
    with pytest.raises(CollectError, match=r"no such column|has none") as error:
        concat(values)
    assert name in str(error.value) or "no rows" in str(error.value) or "has none" in str(error.value)


def test_arrays_stay_beside_parts_without_rows() -> None:
    joined: Any = concat([{"a": [1], "b": np.array([2])}, {}, {"a": []}])
    assert joined["a"] == [1] and joined["b"].tolist() == [2]

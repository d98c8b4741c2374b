"""Lazy results as the values that they stand for."""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections import UserDict
from typing import TYPE_CHECKING, Any

import numpy
import torch
from tests.conformance.checks.failing import gate
from tests.conformance.harness import raises
from tests.conformance.subjects.echo import Echo, Holder, Pair, Reducer
from tests.conformance.subjects.faults import Faulty
from tests.conformance.subjects.layouts import FOUR

from twinkle_remote import Lazy, get, submit
from twinkle_remote.errors import CallTimeoutError, DispatchError

if TYPE_CHECKING:
    from tests.conformance import Harness


def test_lazy_results_behave_like_the_value(harness: Harness) -> None:
    """Iterating, `len`, indexing, `bool`, comparing, arithmetic, formatting and calling use the value."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    lazy = submit(echo.rows, [3, 1, 2])
    assert isinstance(lazy, Lazy)
    assert list(lazy) == [3, 1, 2] and len(lazy) == 3 and lazy[0] == 3 and lazy[1:] == [1, 2] and bool(lazy)
    assert lazy == [3, 1, 2] and lazy != [1] and 3 in lazy and sorted(lazy) == [1, 2, 3] and lazy() == [3, 1, 2]
    assert [*lazy, 4] == [3, 1, 2, 4] and str(lazy) == f"{lazy}" == "[3, 1, 2]"
    assert list(reversed(lazy)) == [2, 1, 3] and lazy.index(2) == 2 and lazy == submit(echo.rows, [3, 1, 2])
    whole = submit(echo.type_of, 7)
    assert whole.upper() == "INT" and f"{whole!s:>4}" == " int"
    seven, three = submit(echo.whole, 7), submit(echo.whole, 3)
    assert seven // three == 2 and 10 % three == 1 and seven**three == 343 and 2**three == 8
    pair = submit(echo.whole, Pair([1], [2]))
    assert pair.left == [1]
    total = submit(harness.build(Reducer, 4).total, [1.0, 2.0])
    assert total + 1 == 4.0 and 1 + total == 4.0 and -total == -3.0 and total > 2 and round(total) == 3
    assert float(total) == 3.0 and int(total) == 3 and f"{total:.2f}" == "3.00" and 6 / total == 2.0


def test_lazy_results_are_arrays_to_array_libraries(harness: Harness) -> None:
    """Array libraries use a lazy result as its array or tensor."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    array = submit(echo.rows, numpy.arange(6.0))
    assert numpy.asarray(array).tolist() == [0, 1, 2, 3, 4, 5] and numpy.sum(array) == 15 and array.mean() == 2.5
    assert (array * 2).tolist() == [0, 2, 4, 6, 8, 10] and (array == numpy.arange(6.0)).all()
    tensor: Any = submit(echo.rows, torch.arange(6))
    assert torch.sum(tensor).item() == 15 and tensor.shape == (6,) and torch.stack([tensor, tensor]).shape == (2, 6)


def test_lazy_results_say_what_to_do_where_they_are_not_the_value(harness: Harness) -> None:
    """Sets, dict keys, private names and pickles: an error that says `get`."""
    lazy = submit(harness.build(Echo, 2).whole, "text")
    for use in (
        lambda: lazy in {"text"},
        lambda: {lazy: 1},
    ):
        with raises(TypeError, "get("):
            use()
    for pickled in (lambda: pickle.dumps([lazy]), lambda: copy.deepcopy({"rows": lazy})):
        with raises(DispatchError, "get("):
            pickled()
    with raises(AttributeError, "_private", "get("):
        lazy._private  # noqa: B018  the error is what is tested
    with raises(TypeError, "Lazy is not JSON serializable"):
        json.dumps(lazy)


def test_get_gives_the_value_in_every_mode(harness: Harness) -> None:
    """`get`: at any depth of lists, tuples, dicts, dataclasses and named tuples; anything else as it is."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    rows = [1, 2, 3]
    for method in (echo.rows, echo.at_once, echo.after_all):
        value = get(method(rows))
        assert type(value) is list and value == rows
    lazy = submit(echo.rows, rows)
    deep = {"a": [(lazy, 1)], "b": Holder(lazy), "c": Pair([[lazy]], []), "d": UserDict(x=lazy), "e": [[[lazy]]]}
    want = {"a": [(rows, 1)], "b": Holder(rows), "c": Pair([[rows]], []), "d": UserDict(x=rows), "e": [[[rows]]]}
    found: Any = get(deep)
    assert found == want and type(found["e"][0][0][0]) is list and type(found["d"]["x"]) is list
    assert type(deep["e"][0][0][0]) is Lazy, "the argument was changed"  # type: ignore[index]  # of mixed types
    for same in (5, None, "text", rows, [[1], {"a": (2,)}], object(), len, Holder(1)):
        assert get(same) is same
    faulty = harness.build(Faulty, 2)
    with raises(KeyError, "Faulty.raises failed on"):
        get([submit(faulty.raises, "key")])
    around: list[Any] = [lazy]
    around.append(around)
    with raises(ValueError, "contains itself"):
        get(around)


def test_lazy_results_tell_what_they_are(harness: Harness) -> None:
    """`repr` names call, group, mesh and state without fetching."""
    lazy = submit(harness.build(Echo, 4, mesh=FOUR["dp2 tp2"]).rows, [1, 2])
    workers, mesh = (1, "") if harness.served else (harness.workers(4), "dp=")
    assert f"Lazy Echo.rows on {harness.groups[4]}[{workers}]" in repr(lazy) and mesh in repr(lazy), repr(lazy)
    lazy.wait()
    assert lazy.done() and repr(lazy).endswith(", done>"), repr(lazy)
    assert lazy.result() == [1, 2] and repr(lazy).endswith(", fetched>"), repr(lazy)


def test_get_has_one_limit_for_all(harness: Harness) -> None:
    """`get(value, timeout)`: one limit, however many results there are."""
    if harness.in_process:
        return
    faulty = harness.build(Faulty, 2)
    with gate(harness) as path:
        lazies = [submit(faulty.stalls_for_ever, path, [0]) for _ in range(20)]
        began = time.monotonic()
        with raises(CallTimeoutError, "Faulty.stalls_for_ever"):
            get(lazies, timeout=harness.patience)
        assert time.monotonic() - began < 20 * harness.patience
    assert get(lazies, timeout=60.0) == ["open"] * 20

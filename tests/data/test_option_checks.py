"""Every option with values of the wrong kind: an error that names it, where the loader is made."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

from twinkle_data import DataLoader, ProcessOptions, StateMismatchError, merge_states
from twinkle_data.loading.options import LoaderOptions

WRONG: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("batch_size", "retries", "max_bad", "num_workers", "prefetch_factor", "restarts"), (None, "2", 1.5)
    ),
    **dict.fromkeys(("shuffle", "replicate", "progress", "pin_memory", "persistent_workers"), (None, "no", 2, [])),
    **dict.fromkeys(("backoff_s", "timeout_s"), (None, "1", True, math.nan, -1)),
    **dict.fromkeys(("collate_fn", "worker_init_fn"), ("list", 3, [])),
    **dict.fromkeys(("processes", "packing"), (4, "two", {"num_workers": 1})),
    **dict.fromkeys(("tail", "on_error"), (None, 1, "no")),
    "seed": (None, "1", 0.5, -1),
    "device_mesh": (2, "dp", [0, 1]),
    "remote_group": (3,),
    "sample_seeds": (None, "numpy", 2),
    "fingerprint": (3, "", b"name"),
    "multiprocessing_context": (3, "thread", math.prod),
    "lengths": (3, [1.5] * 8, [0] * 8),
    "max_tokens": ("8", 0),
    "micro_batches": ("2", 0),
}
NEEDS: dict[str, dict[str, Any]] = {"lengths": {"max_tokens": 8}, "max_tokens": {"lengths": [1] * 8}}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_an_error_that_names_the_option(name: str, value: Any) -> None:
    options: dict[str, Any] = {"batch_size": 2, name: value}
    options = {**NEEDS.get(name, {}), **options}
    if name == "micro_batches":
        options.update(lengths=[1] * 8, max_tokens=8)
    with pytest.raises((TypeError, ValueError), match=name.removesuffix("_workers")):
        DataLoader(list(range(8)), **options)


def test_no_option_is_left_out() -> None:
    known = {*inspect.signature(DataLoader.__init__).parameters, *LoaderOptions.__annotations__}
    assert known - {"self", "dataset", "options"} == set(WRONG)


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: Any = np.int64(0), np.float32(2)
    options = ProcessOptions(numbers[0], timeout_s=numbers[1])
    assert options.timeout_s == 2.0
    assert ProcessOptions(timeout_s=math.inf).timeout_s == math.inf


@pytest.mark.parametrize("state", [None, 3, [], "state", {}, {"version": 1}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(StateMismatchError):
        DataLoader([1, 2], batch_size=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("epoch", "position") for value in (None, -1, 0.5, True, "0")],
        *[("quarantine", value) for value in (None, 3, "01", [1.5], [None], [-1])],
        *[(name, None) for name in ("seed", "length", "fingerprint", "algorithm", "version")],
    ],
)
def test_a_state_with_a_wrong_value_is_refused_and_moves_nothing(name: str, value: Any) -> None:
    loader: DataLoader[Any] = DataLoader(list(range(8)), batch_size=2)
    next(loader)
    with pytest.raises(StateMismatchError, match=name):
        loader.load_state_dict({**loader.state_dict(), name: value})
    assert list(next(loader)) == [2, 3]
    if name == "quarantine":
        with pytest.raises(StateMismatchError, match=name):
            merge_states([loader.state_dict(), {**loader.state_dict(), name: value}])

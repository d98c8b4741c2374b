"""Values of no known type: what looks as if it had rows is refused, all else goes whole."""

from __future__ import annotations

import array
import subprocess
import sys
from collections import deque
from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch
from tests.remote.made_calls import made_call

from twinkle_remote import CollectError, DispatchError, Replicate
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.protocol.backend import Memory
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.rows.concat import concat_results


class Colour(Enum):
    RED = 1
    BLUE = 2


class Rows:
    """It has a length and items by index."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


def call(value: Any, **options: Any) -> Any:
    spec = FunctionSpec(dispatch="slice_dp", **options)
    shares = dispatch(made_call("Echo.given", spec, [0, 1], value=value, rows=[1, 2]), Memory().put)
    return [shares.arguments[index][0][0] for index in shares.of_rank]


@pytest.mark.parametrize(
    "value", [Rows(), deque([1, 2]), array.array("d", [1.0, 2.0]), torch.nn.Sequential(), memoryview(b"abc")]
)
def test_containers_of_no_known_type_are_refused(value: Any) -> None:
    name = type(value).__name__
    for held in (value, {"deep": {"in": value}}):
        with pytest.raises(DispatchError, match=rf"value.*{name}, .*Replicate.*split=.*register_rows\({name}"):
            call(held)
    with pytest.raises(CollectError, match=name):
        concat_results([value, value], "result")
    assert call(Replicate(value)) == [value, value]
    assert call({"deep": Replicate(value)}) == [{"deep": value}] * 2
    assert call(value, replicate=("value",)) == call(value, split=("rows",)) == [value, value]


@pytest.mark.parametrize("value", ["text", b"bytes", bytearray(b"x"), Colour, Colour.RED, 5, None, np.dtype("int8")])
def test_what_has_no_rows_goes_whole(value: Any) -> None:
    assert call(value) == [value, value]


@pytest.mark.parametrize("package", ["twinkle_remote", "twinkle"])
def test_no_library_is_loaded_before_a_value_of_it_is_seen(package: str) -> None:
    program = f"""
        import sys, {package}
        import twinkle_remote.rows.cut as split
        split.rows_of({{"a": [1, 2], "b": range(2)}})
        heavy = {{"datasets", "numpy", "pandas", "polars", "pyarrow", "torch", "transformers"}}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    source = "\n".join(line.strip() for line in program.splitlines())
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)

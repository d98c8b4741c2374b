"""Values in stored form: what is read is what was put, and only the rows that are asked for are opened."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle.engines import Rollouts
from twinkle_ray.objects import chunks as rows
from twinkle_ray.objects.pickling import pack
from twinkle_remote.rows.cut import take
from twinkle_remote.rows.reduce import equal

if TYPE_CHECKING:
    from twinkle_remote.protocol import Rows


@dataclass(frozen=True)
class Batch:
    tokens: Any
    text: Any
    stop: str = "eos"


class Pair(NamedTuple):
    left: Any
    right: Any


DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def same(left: Any, right: Any) -> bool:
    """Equality to any depth."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, Pair):
        return all(map(same, left, right))
    if isinstance(left, Batch):
        return same(vars(left), vars(right))
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return equal(left, right)


def column(kind: str, length: int) -> Any:
    if kind == "array":
        return np.arange(length * 3.0).reshape(length, 3)
    if kind == "tensor":
        return torch.arange(length * 2).reshape(length, 2)
    if kind == "texts":
        return [f"text {i} " * 40 for i in range(length)]
    return [{"id": i, "logits": np.full(100, float(i))} for i in range(length)]


KINDS = st.sampled_from(["array", "tensor", "texts", "objects"])
FIRST, SECOND = st.integers(0, 200), st.integers(0, 200)


def shaped(shape: str, first: Any, second: Any) -> Any:
    made = {
        "bare": first,
        "dict": {"a": first, "b": second, "note": "whole"},
        "dataclass": Batch(first, second),
        "tuple": Pair({"x": first}, second),
    }
    return made[shape]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bare", "dict", "dataclass", "tuple"]), KINDS, KINDS, FIRST, SECOND, FIRST, SECOND, FIRST)
def test_rows_of_the_stored_form_are_the_rows_of_the_value(
    shape: str, one: str, other: str, length: int, start: int, stop: int, inner_start: int, inner_stop: int
) -> None:
    value = shaped(shape, column(one, length), column(other, length))
    start, stop = sorted((min(start, length), min(stop, length)))
    pickled = pack(rows.fold(value))
    whole, _ = rows.unfold(pickled.open())
    assert same(whole, value)
    read, _ = rows.unfold(pickled.open(), range(start, stop))
    assert same(read, take(value, range(start, stop)))
    cut = pack(rows.cut(pickled.open(), start, stop))
    assert same(rows.unfold(cut.open(), range(stop - start))[0], read)
    inner_start, inner_stop = sorted((min(inner_start, stop - start), min(inner_stop, stop - start)))
    assert same(rows.unfold(cut.open(), range(inner_start, inner_stop))[0], take(read, range(inner_start, inner_stop)))


def test_a_reader_of_few_rows_opens_few_bytes() -> None:
    value = column("objects", 4096)
    pickled = pack(rows.fold(value))
    read, size = rows.unfold(pickled.open(), range(1024, 2048))
    assert same(read, value[1024:2048])
    assert 0.25 * pickled.nbytes * 0.95 < size < 0.25 * pickled.nbytes * 1.05


def test_arrays_are_views_of_the_buffer_and_tensors_are_not() -> None:
    array, tensor = np.arange(100_000.0), torch.arange(100_000.0)
    pickled = pack(rows.fold({"a": array, "t": tensor}))
    assert len(pickled.buffers) == 2
    first, _ = rows.unfold(pickled.open(), range(10, 20))
    second, _ = rows.unfold(pickled.open(), range(10, 20))
    assert np.shares_memory(first["a"], second["a"])
    first["t"].fill_(-1)
    assert same(second["t"], tensor[10:20])
    assert tensor[10] == 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_travel_as_arrays(dtype: torch.dtype) -> None:
    value = torch.arange(24).reshape(4, 6).to(dtype)
    for held in (value, value.t(), value[::2], torch.nn.Parameter(value, requires_grad=False)):
        pickled = pack(rows.fold([held, {"deep": (held,)}]))
        read, _ = rows.unfold(pickled.open())
        for got in (read[0], read[1]["deep"][0]):
            assert type(got) is type(held)
            assert got.dtype is dtype
            assert torch.equal(got.view(torch.uint8) if dtype.itemsize == 1 else got, _bytes(held))
    scalar, _ = rows.unfold(pack(rows.fold(value[0, 1])).open())
    assert scalar.shape == ()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    plain = value.detach().contiguous()
    return plain.view(torch.uint8) if plain.dtype.itemsize == 1 else plain


def test_gradients_and_unusual_tensors_keep_their_kind() -> None:
    grad = torch.ones(3, requires_grad=True)
    read, _ = rows.unfold(pack(rows.fold({"x": grad * 2})).open())
    assert read["x"].requires_grad and read["x"].is_leaf
    sparse = torch.eye(4).to_sparse()
    read, _ = rows.unfold(pack(rows.fold([sparse])).open())
    assert torch.equal(read[0].to_dense(), torch.eye(4))
    conjugate = torch.tensor([1 + 2j]).conj()
    assert rows.unfold(pack(rows.fold([conjugate])).open())[0][0].item() == 1 - 2j


def test_rows_of_a_row_type_are_not_cut_by_column() -> None:
    ids = [[i] * (20_000 + i) for i in range(6)]
    rollouts = Rollouts(ids, counts=[1, 3, 0, 2], prompts=[str(i) for i in range(4)])
    stored = rows.fold({"made": rollouts})
    assert rows.unfold(stored)[0]["made"] == rollouts
    for start, stop in itertools.combinations_with_replacement(range(5), 2):
        assert rows.unfold(stored, range(start, stop))[0]["made"] == rollouts[start:stop]
        assert rows.unfold(rows.cut(stored, start, stop))[0]["made"] == rollouts[start:stop]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bare", "dict", "dataclass", "tuple"]), KINDS, KINDS, FIRST, st.data())
def test_pieces_by_rows_are_the_value(shape: str, one: str, other: str, length: int, data: st.DataObject) -> None:
    value = shaped(shape, column(one, length), column(other, length))
    form = rows.fold(value)
    bounds = rows.piece_bounds(form, data.draw(st.integers(2, 40)) << 20)
    assert (bounds[0], bounds[-1]) == (0, length) if bounds else length == 0
    if len(bounds) < 3:
        return
    pieces = [rows.cut(form, *ends) for ends in itertools.pairwise(bounds)]
    some = st.lists(st.integers(0, length - 1)).map(tuple)
    several: list[Rows] = [range(length), *(data.draw(some) for _ in range(3))]
    for wanted in several:
        parts, order = [], list[int]()
        for index, own, places in rows.pieces_of(wanted, bounds):
            parts.append(rows.unfold(pieces[index], own)[0])
            order += places
        assert same(rows.joined(parts, order), take(value, wanted))


@pytest.mark.parametrize("form", [{"a": np.ones(4), "b": object()}, {"a": np.ones(4), "b": float("nan")}, 3, None])
def test_what_would_not_be_the_same_when_joined_lies_in_one_piece(form: Any) -> None:
    assert rows.piece_bounds(form, 64 << 20) == ()
    assert rows.piece_bounds(torch.nn.Parameter(torch.ones(4)), 64 << 20) == ()
    assert rows.piece_bounds(rows.fold(torch.ones(4, requires_grad=True)), 64 << 20) == ()

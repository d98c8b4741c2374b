"""What is decoded is what was encoded: type, value, dtype, shape and memory, for every value of the wire's types."""

from __future__ import annotations

import datetime
import enum
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis.extra.numpy as numpy_strategies
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_http.errors import WireFormatError, WireTypeError
from twinkle_http.types import annotations_of, register_annotated
from twinkle_http.wire import decode, encode
from twinkle_remote import register_type, remote_class, remote_function
from twinkle_remote.rows import TYPES, TypeNames, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction


@dataclass
class Rollout:
    prompt: str
    tokens: list[int]
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Score:
    value: float
    parts: tuple[float, ...] = ()
    derived: float = field(init=False, default=1.5)


@dataclass
class Checked:
    limit: int
    weights: Any

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"limit={self.limit} is at or above 0")
        self.weights = np.array(self.weights)


@dataclass(init=False)
class Other:
    rows: list[int]

    def __init__(self, count: int) -> None:
        self.rows = list(range(count))


@dataclass(frozen=True)
class Cached:
    x: int

    @cached_property
    def double(self) -> int:
        return 2 * self.x


class Pair(NamedTuple):
    left: Any
    right: Any


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Bits(enum.Flag):
    READ = 1
    WRITE = 2


def known() -> TypeNames:
    types = TypeNames()
    for kind in (Rollout, Score, Pair, Colour, Bits, Checked, Other, Cached):
        types.add(kind)
    types.add(datetime.datetime, plain=(datetime.datetime.isoformat, datetime.datetime.fromisoformat))
    return types


def travelled(value: Any, size: int = 1 << 20) -> Any:
    message = encode(value, known())
    chunks = [bytes(chunk) for chunk in message.chunks(size)]
    assert sum(map(len, chunks)) == message.nbytes
    return decode(bytearray(b"".join(chunks)), known())


def same(one: Any, other: Any) -> bool:
    """Equality that also tells types, NaN, signed zeros and dtypes apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, torch.Tensor):
        alike = (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        raw = [part.detach().contiguous().reshape(-1).view(torch.uint8) for part in (one, other) if part.numel()]
        return alike and (not raw or torch.equal(*raw))
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other or (one != one and other != other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, Rollout):
        return same(vars(one), vars(other))
    return bool(one == other)


keys = st.text(max_size=5) | st.integers() | st.booleans() | st.tuples(st.integers(), st.text(max_size=3))
numbers = st.none() | st.booleans() | st.integers() | st.floats()
moments = st.datetimes() | st.datetimes(timezones=st.just(datetime.UTC))
sets = st.frozensets(st.integers() | st.text(max_size=3))
texts = st.text() | st.binary() | st.binary(min_size=1025, max_size=3000) | st.binary().map(bytearray)
classes = st.sampled_from([*Colour, *Bits, Bits.READ | Bits.WRITE, range(3, 9, 2), slice(1, None)])
dtypes = (
    numpy_strategies.boolean_dtypes()
    | numpy_strategies.integer_dtypes()
    | numpy_strategies.floating_dtypes(sizes=(16, 32, 64))
    | numpy_strategies.complex_number_dtypes(sizes=(64, 128))
    | numpy_strategies.datetime64_dtypes()
    | numpy_strategies.unicode_string_dtypes(min_len=1, max_len=5)
)
arrays = numpy_strategies.arrays(dtypes, numpy_strategies.array_shapes(min_dims=0, min_side=0, max_side=4))
TENSORS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")
tensors = st.builds(
    lambda kind, shape: torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, kind)),
    st.sampled_from(TENSORS),
    st.lists(st.integers(0, 4), max_size=4),
)
leaves = numbers | moments | sets | sets.map(set) | texts | classes | arrays | tensors
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Rollout, st.text(), st.lists(st.integers(0, 9), max_size=3), inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(values, st.integers(1, 5000))
def test_every_value_comes_back_as_it_was(value: Any, size: int) -> None:
    assert same(travelled(value, size), value)


def test_a_dataclass_is_built_by_its_constructor() -> None:
    score = Score(2.0, (1.0, 2.0))
    assert travelled([score]) == [score] and travelled(score).derived == 1.5
    forged = travelled(Checked(1, np.ones(2)))
    forged.limit = -1
    with pytest.raises(WireFormatError, match="limit=-1 is at or above 0"):
        travelled(forged)
    with pytest.raises(WireFormatError, match="register_type"):
        travelled(Other(3))
    cached = Cached(3)
    assert cached.double == 6, "what is computed of fields is lost and hinders nothing"
    assert travelled(cached) == cached and travelled(cached).double == 6


def test_views_arrive_as_what_they_show() -> None:
    base = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    for tensor in (base, base.T, base[::2, 1::2], base[:0], base[1, 2], base.expand(2, 4, 6)):
        assert same(travelled(tensor), tensor.contiguous())
    assert travelled(torch.ones(2, requires_grad=True)).requires_grad
    numbers = np.arange(24, dtype=">i4").reshape(4, 6)
    for array in (numbers, numbers.T, numbers[::2, ::-1], np.asfortranarray(numbers), numbers[:0]):
        back = travelled(array)
        assert back.dtype == array.dtype and np.array_equal(back, array) and back.shape == array.shape
    for scalar in (np.float32(1.5), np.datetime64("2026-01-01", "ns")):
        assert same(travelled(scalar), scalar)


def test_what_is_sent_is_the_arrays_own_memory_and_what_arrives_can_be_written() -> None:
    array = np.arange(1 << 16)
    sent = encode({"a": [array]}, known()).parts[-1]
    assert np.shares_memory(np.frombuffer(sent, np.int64), array)
    back = travelled({"a": [array]})
    back["a"][0][0] = 7
    assert array[0] == 0


class Stranger:
    pass


@dataclass
class Unregistered:
    rows: list[int]


class Settings(dict[str, int]):
    pass


loop: list[Any] = []
loop.append(loop)
extended = Rollout("p", [1])
extended.loss = 3.0  # type: ignore[attr-defined]  # an attribute that is no field


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"a": Stranger()}], r"batch\[0\]\['a'\] is a .*Stranger, which cannot be sent"),
        ({"a": Unregistered([1])}, r"batch\['a'\] is a .*Unregistered, .* twinkle.register_type\(Unregistered\)"),
        (Settings(a=1), "Settings, which cannot be sent: send plain values, plain containers"),
        (OrderedDict(a=1), "a collections.OrderedDict, which cannot be sent"),
        (torch.nn.Parameter(torch.ones(2)), "a torch.nn.parameter.Parameter, which cannot be sent"),
        (lambda: 1, "which cannot be sent"),
        (np.array([{}], dtype=object), "array of dtype object, which cannot be sent"),
        (np.zeros(2, [("a", "i4")]), "which cannot be sent: use numbers"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo .* make it dense"),
        (extended, "attributes that are no fields: loss would be lost"),
        (loop, "more than 100 values deep, or contains itself"),
        ("\ud800", "lone surrogates"),
        (1j, "a complex, which cannot be sent: .* to_plain"),
    ],
)
def test_what_does_not_travel_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(WireTypeError, match=message):
        encode(value, known(), what="batch")


def test_a_class_that_only_the_sender_knows_is_refused_by_name() -> None:
    data = encode(Pair(1, 2), known()).to_bytes()
    with pytest.raises(WireFormatError, match=r"Pair' is not known here.*twinkle.register_type"):
        decode(data, TypeNames())


@dataclass
class Field:
    x: int


@dataclass
class Near:
    fields: Sequence[dict[str, Field | None]]
    exact: Fraction | None = None


@dataclass
class Kept:
    x: int


@remote_class()
class Served:
    def __init__(self, near: Mapping[str, Near] | None = None) -> None: ...

    @remote_function(dispatch="all", collect="first")
    def run(self, value: Fraction) -> None: ...

    def own(self, kept: Kept) -> None: ...


def sent(value: Any) -> Any:
    return decode(encode(value).to_bytes())


def test_what_annotations_name_travels_and_another_class_by_two_functions() -> None:
    register_annotated(Served)
    near = Near([{"a": Field(1)}])
    assert sent(near) == near, "a class is known by the fields of another, too"
    assert TYPES.find(name_of(Kept)) is None, "no remote function names it"
    assert annotations_of(Served.run)["value"] is Any, "it is named for type checkers only"
    register_type(Decimal, to_plain=str, from_plain=Decimal)
    assert sent([Decimal("1.50")]) == [Decimal("1.50")]

"""Types in the annotations of a served class can be sent; what is named for type checkers only, after register_type."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_http.messages import WireTypeError
from twinkle_http.types import annotations_of, register_annotated
from twinkle_http.wire import decode, encode
from twinkle_remote import register_type, remote_class, remote_function
from twinkle_remote.rows import TYPES, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction


@dataclasses.dataclass
class Field:
    x: int


@dataclasses.dataclass
class Near:
    fields: Sequence[Field | None]
    exact: Fraction | None = None


@dataclasses.dataclass
class Kept:
    x: int


@remote_class()
class Served:
    def __init__(self, near: Mapping[str, Near] | None = None) -> None: ...

    @remote_function(dispatch="all", collect="first")
    def run(self, value: Fraction) -> None: ...

    def own(self, kept: Kept) -> None: ...


def travelled(value: Any) -> Any:
    return decode([encode(value, TYPES).to_bytes()], TYPES)


def test_what_annotations_of_remote_functions_name_travels() -> None:
    register_annotated(Served)
    assert travelled(Near([Field(1)])) == Near([Field(1)])
    assert TYPES.find(name_of(Kept)) is None, "no remote function names it"
    assert annotations_of(Served.run)["value"] is Any, "it is named for type checkers only"


def test_another_class_travels_by_two_functions() -> None:
    with pytest.raises(WireTypeError, match="to_plain"):
        travelled(Decimal("1.50"))
    register_type(Decimal, to_plain=str, from_plain=Decimal)
    assert travelled([Decimal("1.50")]) == [Decimal("1.50")]


@dataclasses.dataclass(frozen=True)
class Cached:
    x: int

    @cached_property
    def double(self) -> int:
        return 2 * self.x


def test_what_was_computed_of_fields_does_not_hinder_a_value() -> None:
    TYPES.add(Cached)
    value = Cached(3)
    assert value.double == 6
    assert travelled(value) == value and travelled(value).double == 6

"""Values of the standard library that have one exact text: dates, decimals, complex numbers, big integers."""

from __future__ import annotations

import datetime
import decimal
import fractions
import struct
import uuid
from typing import TYPE_CHECKING, Any

from twinkle_http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DIGITS = 4300  # Python's own limit of int(text)


def _from_delta(value: datetime.timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _to_delta(text: str) -> datetime.timedelta:
    days, seconds, microseconds = map(int, text.split(" "))
    return datetime.timedelta(days, seconds, microseconds)


def _from_moment(value: Any) -> str:
    return f"{value.isoformat()} {value.fold}"


def _to_moment(kind: Any, text: str) -> Any:
    moment, _, fold = text.rpartition(" ")
    return kind.fromisoformat(moment).replace(fold=int(fold))


def _from_complex(value: complex) -> str:
    return struct.pack("<dd", value.real, value.imag).hex()  # keeps the sign of a NaN, which no decimal text has


def _to_complex(text: str) -> complex:
    try:
        return complex(*struct.unpack("<dd", bytes.fromhex(text)))
    except struct.error as error:
        raise ValueError(str(error)) from None


def _to_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} hexadecimal digits")
    return int(text, 16)


_TEXTS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    int: ("int", lambda value: format(value, "x"), _to_int),
    complex: ("complex", _from_complex, _to_complex),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", _from_moment, lambda text: _to_moment(datetime.time, text)),
    datetime.datetime: ("datetime", _from_moment, lambda text: _to_moment(datetime.datetime, text)),
    datetime.timedelta: ("timedelta", _from_delta, _to_delta),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    fractions.Fraction: ("fraction", str, fractions.Fraction),
    uuid.UUID: ("uuid", str, uuid.UUID),
}
_BY_TAG = {tag: parse for tag, _, parse in _TEXTS.values()}


def to_text(value: Any) -> tuple[str, str] | None:
    """Tag and text of a value; None if its type has none, or if the text would lose something."""
    entry = _TEXTS.get(type(value))
    if entry is None:
        return None
    tag, write, parse = entry
    text = write(value)
    if isinstance(value, datetime.datetime | datetime.time) and not _same_zone(value, parse(text)):
        return None
    return tag, text


def is_scalar_tag(tag: str) -> bool:
    """Whether a tag belongs to a value with a text."""
    return tag in _BY_TAG


def from_text(tag: str, text: object) -> Any:
    """The value of a text.

    Raises:
        WireFormatError: The text is none of this type.
    """
    if not isinstance(text, str) or len(text) > _MAX_DIGITS:
        raise WireFormatError(f"a {tag} has a text of at most {_MAX_DIGITS} characters")
    try:
        return _BY_TAG[tag](text)
    except (ValueError, ArithmeticError, OverflowError) as error:
        raise WireFormatError(f"{text!r:.80} is no {tag}: {error}") from None


def _same_zone(value: Any, parsed: Any) -> bool:
    kind = type(value.tzinfo)
    return bool(value.tzinfo == parsed.tzinfo and kind in (type(None), datetime.timezone))

"""Numbers, lists and rows as callers give them, in the forms of several libraries: taken, or refused by name."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from twinkle_remote import get

T = TypeVar("T")


def plain_number(value: Any) -> Any:
    """Python's number of a number, array or tensor without dimensions of another library."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _is_other(plain: Any) -> bool:
    """Whether a value may turn into a number, but is none: a flag, a class, an array."""
    return isinstance(plain, bool | type) or hasattr(plain, "shape")


def above_zero(name: str, value: Any) -> float:
    """A finite number above 0 as a float.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of this range.
    """
    found = fraction(name, value)
    if not 0 < found < math.inf:
        raise ValueError(f"{name} is above 0, and finite, but got {name}={value}")
    return found


def fraction(name: str, value: Any) -> float:
    """A number as a float.

    Raises:
        TypeError: It is something else.
        ValueError: It is too large for a float.
    """
    plain = plain_number(value)
    if _is_other(plain) or not hasattr(plain, "__float__"):
        raise TypeError(f"{name} is a number, got {value!r:.60} of type {type(value).__name__}")
    try:
        return float(plain)
    except OverflowError as error:
        raise ValueError(f"{name} is {plain!r:.60}, which is too large for a float: use a smaller number") from error


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number as an int; a fraction such as 8.0, as files of configurations have it, too.

    Args:
        name: What it is, for errors.
        value: The number.
        least: The smallest one that is taken; None takes all.

    Raises:
        TypeError: It is something else.
        ValueError: It is below the least.
    """
    plain = plain_number(value)
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if _is_other(plain) or not hasattr(plain, "__index__"):
        raise TypeError(f"{name} is a whole number, got {value!r:.60} of type {type(value).__name__}")
    found = operator.index(plain)
    if least is not None and found < least:
        raise ValueError(f"{name} is at or above {least}, got {found}")
    return found


def flag(name: str, value: Any) -> bool:
    """True or False, of numpy and torch too.

    Raises:
        TypeError: It is something else.
    """
    plain = plain_number(value)
    if not isinstance(plain, bool):
        raise TypeError(f"{name} is True or False, got {value!r:.60} of type {type(value).__name__}")
    return plain


def seconds(name: str, value: Any) -> float | None:
    """Seconds above 0; None for any time.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0, or not finite.
    """
    if value is None:
        return None
    found = fraction(name, value)
    if not 0 < found < math.inf:
        raise ValueError(f"{name} is above 0 seconds, or None, got {value}")
    return found


def called_with(what: str, function: Any, *names: str) -> None:
    """Raise for a function that cannot be called with so many arguments.

    Args:
        what: What it is, for the error.
        function: Any object that can be called.
        names: What each argument is.

    Raises:
        TypeError: It takes another number of them.
    """
    try:
        inspect.signature(function).bind(*names)
    except ValueError:  # one written in C may not show its parameters
        return
    except TypeError as error:
        given = f"with {len(names)} arguments, the {' and the '.join(names)}" if names else "without arguments"
        raise TypeError(
            f"{what} is called {given}, but {function!r:.60} has others ({error}): use one that takes them"
        ) from None


def instance(kind: type[T], name: str, value: Any) -> T:
    """A value of a class, computed where it is lazy.

    Raises:
        TypeError: It is something else.
    """
    found = value if isinstance(value, kind) else get(value)
    if not isinstance(found, kind):
        raise TypeError(f"{name} is {kind.__name__}, got {found!r:.60} of type {type(found).__name__}")
    return found


def listed(name: str, values: Any, of: str) -> list[Any]:
    """Values as a list, one for each of something.

    Raises:
        ValueError: They are a text, a mapping, a set, an iterator, or no list at all: these have no entries in order.
    """
    has_order = hasattr(values, "__len__") and getattr(values, "shape", None) != ()
    if not has_order or isinstance(values, str | bytes | Mapping | set | frozenset):
        raise ValueError(
            f"{name} is {values!r:.60} of type {type(values).__name__}: give a list with one entry for each {of}"
        )
    return list(values)


def each(name: str, values: Any) -> Iterable[Any]:
    """The values of anything that is iterated over in order.

    Raises:
        TypeError: It is something else, a text, or a mapping.
    """
    is_other = isinstance(values, str | bytes | Mapping) or getattr(values, "shape", None) == ()
    if is_other or not isinstance(values, Iterable):
        raise TypeError(f"{name} are a list, got {values!r:.60} of type {type(values).__name__}")
    return values


def by_name(name: str, values: Any) -> Mapping[str, Any]:
    """A mapping by names.

    Raises:
        TypeError: It is no mapping, or a key is no text.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} is a mapping by name, got {values!r:.60} of type {type(values).__name__}")
    for key in values:
        if not isinstance(key, str):
            raise TypeError(f"{name} has the key {key!r} of type {type(key).__name__}: use texts as names")
    return values


def row_numbers(key: Any, count: int) -> int | list[int]:
    """The row of a number, or the rows of several, of numpy and torch too, as `argsort` gives them.

    Raises:
        IndexError: There is no such row.
        TypeError: It is no number; a flag is none, because True would be the row 1.
    """
    plain = key.tolist() if hasattr(key, "tolist") else key
    if isinstance(plain, list | tuple | range):
        return [_row(key, one, count) for one in plain]
    return _row(key, plain, count)


def _row(key: Any, one: Any, count: int) -> int:
    number = plain_number(one)
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(
            f"rows are chosen by an int, a slice or a list of ints, got {key!r:.60} of type {type(key).__name__}; "
            "[i for i, keep in enumerate(flags) if keep] chooses by flags"
        )
    if not -count <= number < count:
        raise IndexError(f"there is no row {number}: these have {count} rows")
    return number % count


_OF_TABLES = ("column_names", "select_dtypes", "get_columns")
"""What tables of pyarrow and datasets, of pandas, and of polars have."""


def rows_of(name: str, given: Any) -> list[Any]:
    """The rows that a call is given, in a list.

    Args:
        name: What they are called, such as "prompts", for errors.
        given: A list, an array, or a table that gives its rows as mappings, as those of Hugging Face do.

    Raises:
        TypeError: It is one row in place of a list of them, columns, a frame, or an iterator.
    """
    kind = type(given).__name__
    if isinstance(given, str | bytes):
        raise TypeError(f"{name} is a list, got the {kind} {given!r:.60}: use a list of it")
    if isinstance(given, Mapping) or any(hasattr(given, name) for name in _OF_TABLES):
        if not isinstance(given, Mapping) and all(isinstance(row, Mapping) for row in given):
            return list(given)
        raise TypeError(
            f"{name} is a list of rows, got columns as {kind}: use [{{...}}, ...], one mapping a row, such as "
            "table.to_pylist(), frame.to_dict('records') or list(dataset)"
        )
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__") or getattr(given, "shape", 0) == ():
        raise TypeError(f"{name} is a list, got {given!r:.60} of type {kind}")
    rows = list(given)
    if rows and all(isinstance(plain_number(one), int) for one in rows):
        raise TypeError(f"{name} is a list, got the token ids {given!r:.60} of one: use a list of them")
    if rows and all(isinstance(one, Mapping) and "role" in one and "prompt" not in one for one in rows):
        raise TypeError(f"{name} is a list, got the messages {given!r:.60} of one chat: use a list of it")
    return rows

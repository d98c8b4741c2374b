"""Checks of the types of options: whole numbers, True and False, seconds, functions, names."""

from __future__ import annotations

from math import isnan
from numbers import Real
from operator import index


def whole_number(name: str, value: object) -> int:
    """Convert a whole number to an int; numpy's integers, in a saved state, would not be JSON.

    Args:
        name: Name of the option, for the error.
        value: An int, or an object with `__index__`.

    Raises:
        TypeError: It is something else, such as a float or a bool.
    """
    try:
        if not isinstance(value, bool) and not str(getattr(value, "dtype", "")).endswith("bool"):
            return index(value)  # type: ignore[arg-type]  # index() checks the type
    except TypeError:
        pass
    raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a whole number")


def true_or_false(name: str, value: object, otherwise: str = "") -> bool:
    """Convert a bool, or numpy's bool, to a bool; a text such as "false" would be true.

    Args:
        name: Name of the option, for the error.
        value: A bool, or 0 or 1.
        otherwise: What else the option takes, for the error.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, bool) or (type(value).__name__ in ("bool", "bool_") and hasattr(value, "dtype")):
        return bool(value)
    if type(value) is int and value in (0, 1):
        return bool(value)
    raise TypeError(
        f"{name}={value!r} is a {type(value).__name__}; use True or False{otherwise and f', or {otherwise}'}"
    )


def seconds(name: str, value: object) -> float:
    """Convert a number of seconds to a float.

    Args:
        name: Name of the option, for the error.
        value: A number of Python's or numpy's, at least 0.

    Raises:
        TypeError: It is no number.
        ValueError: It is below 0, or not a number.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a number of seconds")
    number = float(value)
    if isnan(number) or number < 0:
        raise ValueError(f"{name}={value!r} must be at least 0 seconds")
    return number


def check_function(name: str, value: object) -> None:
    """Check that an option is a function, or None.

    Raises:
        TypeError: It cannot be called.
    """
    if value is not None and not callable(value):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}, which cannot be called; use a function or None")


def check_name(name: str, value: object) -> None:
    """Check that an option is a text that is not empty, or None.

    Raises:
        TypeError: It is no text.
        ValueError: It is empty, and would be equal for all datasets that have no name.
    """
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; use a text or None")
    if value == "":
        raise ValueError(f"{name}='' is empty; give a name, or leave it out")


def check_kind(name: str, value: object, kind: type) -> None:
    """Check that an option is an instance of a class of ours, or None.

    Raises:
        TypeError: It is something else.
    """
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; use {kind.__name__}(...) or None")

"""Checks that an option is a whole number, or one of True and False."""

from __future__ import annotations

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

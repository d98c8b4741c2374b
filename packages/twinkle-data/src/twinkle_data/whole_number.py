"""Checks that an option is a whole number."""

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

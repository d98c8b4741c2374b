"""Whole numbers of any library as Python's own."""

from __future__ import annotations

from operator import index


def whole_number(name: str, value: object) -> int:
    """A whole number as an int: numpy's are not JSON-able, and would end up in a state.

    Args:
        name: What is given, for the message.
        value: An int, or what can stand for one.

    Raises:
        TypeError: It is not whole, as a float is not.
    """
    try:
        return index(value)  # type: ignore[arg-type]  # that is what is asked
    except TypeError:
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it must be a whole number") from None

"""Arguments of public names, checked where a caller gives them: numbers, flags and folders."""

from __future__ import annotations

import math
import operator
from os import PathLike, fspath
from pathlib import Path
from typing import Any


def whole(name: str, value: object, least: int = 1) -> int:
    """A whole number of Python, numpy or torch, as Python's; a fraction such as 8.0 is one too.

    Args:
        name: The argument, for errors.
        value: What was given.
        least: The smallest that it may be.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is smaller.
    """
    plain = _plain(value)
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    if isinstance(plain, bool | type) or hasattr(plain, "shape") or not hasattr(plain, "__index__"):
        raise TypeError(f"{name} is a whole number, got {value!r:.60} of type {type(value).__name__}; use {least}")
    number = operator.index(plain)
    if number < least:
        raise ValueError(f"{name} is at least {least}, got {number}; use {least}")
    return number


def number(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    """A number of Python, numpy or torch, as Python's.

    Args:
        name: The argument, for errors.
        value: What was given.
        least: The smallest that it may be.
        most: The largest that it may be.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of the range, or NaN.
    """
    plain = _plain(value)
    if isinstance(plain, bool | str | bytes | type) or hasattr(plain, "shape") or not hasattr(plain, "__float__"):
        raise TypeError(f"{name} is a number, got {value!r:.60} of type {type(value).__name__}; use a float")
    found = float(plain)
    if not least <= found <= most:
        raise ValueError(f"{name} is in [{least:g}, {most:g}], got {found}; use a number of this range")
    return found


def above_zero(name: str, value: object) -> float:
    """A number of Python, numpy or torch above 0, as Python's.

    Raises:
        TypeError: It is no number.
        ValueError: It is not above 0.
    """
    found = number(name, value)
    if found <= 0:
        raise ValueError(f"{name} is above 0, got {found}; use a larger one")
    return found


def flag(name: str, value: object) -> bool:
    """A flag of Python, numpy or torch, as Python's.

    Raises:
        TypeError: It is neither true nor false; texts and numbers are not.
    """
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise TypeError(f"{name} is a flag, got {value!r:.60} of type {type(value).__name__}; use True or False")
    return plain


def check_rollouts(value: object) -> None:
    """Raise for what is no rollouts.

    Raises:
        TypeError: It is something else.
    """
    from twinkle_engines.batches.rollouts import Rollouts  # which loads torch

    if not isinstance(value, Rollouts):
        raise TypeError(
            f"rollouts is Rollouts, got {value!r:.60} of type {type(value).__name__}; use those of a sampler, "
            "or Rollouts(ids, ...)"
        )


def folder_path(name: str, value: object) -> Path:
    """A path of a folder, whether it is there or not.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty, or begins with a home folder's sign, which nothing expands.
    """
    try:
        text: Any = fspath(value) if isinstance(value, str | PathLike) else None
    except TypeError:  # a class that only claims to be a path
        text = None
    if not isinstance(text, str):
        raise TypeError(f"{name} is a path, got {value!r:.60} of type {type(value).__name__}; use a str or a Path")
    if not text:
        raise ValueError(f'{name} is a path, got an empty text; use "." for the current folder')
    if text.startswith("~"):
        raise ValueError(f"{name} is {text!r}, in which ~ is not expanded; use Path({text!r}).expanduser()")
    return Path(text)


def _plain(value: Any) -> Any:
    """Python's number of a number, array or tensor without dimensions of another library."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", ()) == () else value

"""Checks of options that a user gives: numbers of seconds, and names."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_seconds(name: str, value: object) -> float:
    """Return a number of seconds as a float.

    Args:
        name: Name of the option.
        value: Any real number, numpy's too, from 0 on.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, infinite or NaN.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a number of seconds, got {type(value).__name__}")
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{name}={value!r} must be a finite number of seconds from 0 on; 86400 is a day")
    return seconds


def check_names(env_allow: str | Sequence[object]) -> tuple[str, ...]:
    """Return names of environment variables as a tuple.

    Args:
        env_allow: One, or several.

    Raises:
        TypeError: One is not a string.
    """
    out = []
    for name in (env_allow,) if isinstance(env_allow, str) else env_allow:
        if not isinstance(name, str):
            raise TypeError(f'env_allow={env_allow!r} must hold names, as ("HF_TOKEN", "MY_*") does; {name!r} is none')
        out.append(name)
    return tuple(out)

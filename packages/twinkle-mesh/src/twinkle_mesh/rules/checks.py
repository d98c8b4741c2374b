"""Checks of single sizes and of names."""

from __future__ import annotations

from _collections_abc import Iterable  # the same class; importing collections.abc costs milliseconds
from operator import index

from .messages import nearest_divisors
from .rule_error import RuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def whole_number(field: str, value: object) -> int:
    """Return a number of any integer type as an int. Floats and bools are refused."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # type: ignore[arg-type]  # the call is the check: integers of numpy pass, floats do not
    except TypeError:
        raise ValueError(f"{field}={value!r} must be a whole number") from None


def at_least_one(field: str, value: object) -> int:
    """Return a size, which is at least 1."""
    number = value if type(value) is int else whole_number(field, value)
    if number < 1:
        raise RuleError(f"{field}={number} must be at least 1", {field: range(1, 33)}, named=False, most=1)
    return number


def check_divides(field: str, size: int, total: int, amount: str) -> None:
    """Raise for a size that does not divide `total`; the error names `total` as `amount`."""
    if total % size:
        raise RuleError(f"{field}={size} does not divide {amount}", {field: nearest_divisors(total, size)}, named=False)


def named(names: object) -> Iterable[Any]:
    """Return names of dims; raise for a single value that is none."""
    if not isinstance(names, Iterable):
        raise TypeError(f"dims are given by name, such as 'dp' or ('dp', 'tp'), got {names!r}; ranks are in mesh.ranks")
    return names


def check_names(names: Iterable[object]) -> tuple[str, ...]:
    """Return the names of dims; raise unless they are identifiers and differ."""
    checked: list[str] = []
    for name in named(names):
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"dim name {name!r} must be a word such as 'dp' or 'ep_shard'")
        if name in checked:
            raise ValueError(f"dim_names={tuple(checked)} already holds {name!r}; dim names must differ")
        checked.append(name)
    return tuple(checked)


def device_kind(device_type: object) -> str:
    """Return torch's name of a device in lower case; "gpu" is "cuda"."""
    if not isinstance(device_type, str) or not device_type.strip().isalnum():
        problem = f"device_type={device_type!r} must be torch's name of a device"
        raise RuleError(problem, {"device_type": ["cuda", "cpu", "npu"]}, named=False)
    kind = device_type.strip().lower()
    return "cuda" if kind == "gpu" else kind

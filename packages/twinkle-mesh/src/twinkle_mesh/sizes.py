"""Sizes: inference of the one that is open, and the checks with what would do instead."""

from __future__ import annotations

from operator import index

from ._messages import divisors, either, nearest_divisors, would

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def whole(field: str, value: object) -> int:
    """Return a whole number, of any integer type, as an int."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)  # type: ignore[arg-type]  # the call is the check: numpy's integers pass, floats do not
    except TypeError:
        raise ValueError(f"{field}={value!r} must be a whole number") from None


def at_least_one(field: str, value: object) -> int:
    """Return a size, which is at least 1."""
    number = whole(field, value)
    if number < 1:
        raise ValueError(f"{field}={number} must be at least 1; 1 would")
    return number


def infer(sizes: Mapping[str, int | None], world_size: int | None) -> dict[str, int]:
    """Return every given dim's size, the open one inferred; dp is always among them.

    Args:
        sizes: Size by dim name (without "_size"): None when not given, -1 for the one to infer.
        world_size: How many ranks there are, or None for the product.
    """
    known: dict[str, int] = {}
    open_dims: list[str] = []
    for name, size in sizes.items():
        if size is None:
            continue
        if type(size) is not int:
            size = whole(f"{name}_size", size)
        if size == -1:
            open_dims.append(name)
            size = 1
        elif size < 1:
            raise ValueError(f"{name}_size={size} must be at least 1, or -1 to infer it; 1 would")
        known[name] = size
    if len(open_dims) > 1:
        listed = " and ".join(f"{name}_size=-1" for name in open_dims)
        raise ValueError(f"{listed}: only one size can be inferred; give all but one of them")

    dp_given = "dp" in known
    known.setdefault("dp", 1)
    total = 1
    for size in known.values():
        total *= size
    if world_size is not None:
        world_size = at_least_one("world_size", world_size)
        if world_size == 1 and total > 1:
            world_size = None
    if world_size is None:
        if open_dims:
            raise ValueError(
                f"{open_dims[0]}_size=-1 needs world_size to be inferred from; world_size={total} would"
            )
        return known
    if total == world_size and not open_dims:
        return known
    inferred = open_dims[0] if open_dims else None if dp_given else "dp"
    if inferred is None or world_size % total:
        raise ValueError(_disagreement(known, inferred, world_size, total))
    known[inferred] = world_size // total
    return known


def _disagreement(known: Mapping[str, int], inferred: str | None, world_size: int, total: int) -> str:
    fixed = {
        name: size for name, size in known.items() if name != inferred and (size > 1 or inferred is None)
    }
    listed = " * ".join(f"{name}_size={size}" for name, size in fixed.items())
    amount = listed if len(fixed) == 1 else f"{listed} = {total}"
    rule = "is not" if inferred is None else "does not divide"
    remedies: list[str] = []
    for name, size in fixed.items():
        others = total // size
        if world_size % others:
            continue
        room = world_size // others
        if inferred is None:
            remedies.append(f"{name}_size={room}")
        elif len(fixed) == 1:
            remedies += [str(value) for value in nearest_divisors(room, size)]
        else:
            remedies.append(f"{name}_size={either(nearest_divisors(room, size))}")
    below = world_size // total * total
    worlds = [f"{n}" for n in (below, below + total) if n]
    if inferred is None:
        remedies.append(f"world_size={total}")
    elif not remedies:
        remedies.append(f"world_size={either(worlds)}")
    if len(fixed) == 1 and inferred is not None and remedies and remedies[0].isdecimal():
        return f"{amount} {rule} world_size={world_size}; {would(remedies)}"
    return f"{amount} {rule} world_size={world_size}; {would(remedies)}"


def check_divides(field: str, size: int, of: str, total: int, *, times: int = 1) -> None:
    """Refuse a size (times another) that does not divide `total`, naming the nearest ones that do."""
    if total % (size * times):
        room = total // times
        near = nearest_divisors(room, size) if total % times == 0 and room else divisors(total)[:4]
        raise ValueError(f"{field}={size} does not divide {of}={room if times > 1 else total}; {would(near)}")


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return dim names that are words and differ."""
    checked = tuple(names)
    for name in checked:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"dim name {name!r} must be a word such as 'dp' or 'ep_shard'")
    if len(set(checked)) != len(checked):
        twice = next(name for name in checked if checked.count(name) > 1)
        raise ValueError(f"dim_names={checked} holds {twice!r} twice; dim names must differ")
    return checked

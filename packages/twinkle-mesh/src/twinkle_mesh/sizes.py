"""Sizes of dims and of shares: one size is inferred, and an error offers the sizes that fit."""

from __future__ import annotations

from math import isqrt, prod
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_ORDER = ("fsdp", "pp", "dp", "cp", "tp")
_TOKENS = ("tp", "cp", "ep", "dp", "pp", "fsdp")


def whole_number(field: str, value: object, least: int | None) -> int:
    """Return a number of any integer type as an int; floats, bools and numbers below `least` are a ValueError."""
    if type(value) is int and least is not None and value >= least:
        return value
    try:
        number = None if isinstance(value, bool) else index(cast("SupportsIndex", value))  # integers of numpy pass
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"{field}={value!r} must be a whole number")
    if least is not None and number < least:
        raise ValueError(f"{field}={number} must be at least {least}; use {least}")
    return number


def check_divides(field: str, size: int, total: int, amount: str) -> None:
    """Raise for a size that does not divide `total`, which the error names as `amount`."""
    if total % size:
        raise ValueError(f"{field}={size} does not divide {amount}; use {_divisors(total, size)}")


def _divisors(number: int, wanted: int) -> str:
    """Return four divisors of a number, the nearest to `wanted`, as in "1, 2, 4 or 8"; of large ones not all."""
    low = [each for each in range(1, min(isqrt(number), 1 << 16) + 1) if number % each == 0]
    found = {*low, *(number // each for each in low)}
    near = sorted(sorted(found, key=lambda each: (abs(each - wanted), each))[:4])
    *first, last = map(str, near)
    return f"{', '.join(first)} or {last}" if first else last


def balanced_slice(total: int, parts: int, part: int) -> slice:
    """Return part `part`, from 0 on, of `total` rows cut into `parts`: the first `total % parts` get one more."""
    total, parts = whole_number("total_length", total, 0), whole_number("parts", parts, 1)
    part = whole_number("part", part, 0)
    if part >= parts:
        raise ValueError(f"part={part} is outside [0, {parts - 1}]: there are {parts} parts")
    share, longer = divmod(total, parts)
    start = part * share + min(part, longer)
    return slice(start, start + share + (part < longer))


def infer_sizes(given: Mapping[str, object], world_size: object = None, *, alone: bool = False) -> dict[str, int]:
    """Return the size of every dim that was given and of dp, with the open one inferred.

    Args:
        given: Size by dim: None where it is left out, -1 for the one to infer. dp is inferred where it is left out.
        world_size: Number of ranks; None, and 1 beside larger sizes unless `alone`, mean the product of the sizes.
        alone: Whether a `world_size` of 1 means one rank.

    Raises:
        ValueError: Sizes do not fit; the error names the rule, the values and what to use.
    """
    sizes = {name: whole_number(f"{name}_size", size, None) for name, size in given.items() if size is not None}
    for name, size in sizes.items():
        if size < 1 and size != -1:
            raise ValueError(f"{name}_size={size} must be at least 1, or -1 to infer it; use 1")
    opened = [name for name, size in sizes.items() if size == -1]
    if len(opened) > 1:
        listed = " and ".join(f"{name}_size=-1" for name in opened)
        raise ValueError(f"{listed}: only one size can be inferred; give all but one of them")
    known = {name: size for name, size in sizes.items() if size != -1}
    total = prod(known.values())
    world = None if world_size is None else whole_number("world_size", world_size, 1)
    if world is None or (world == 1 < total and not alone):
        if opened:
            raise ValueError(f"{opened[0]}_size=-1 needs a world_size to be inferred from; use world_size={total}")
        world = total
    large = {name: size for name, size in known.items() if size > 1} or known
    listed = " * ".join(f"{name}_size={size}" for name, size in large.items())
    listed += f" = {total}" if len(large) > 1 else ""
    if not opened and "dp" in known and total != world:
        raise ValueError(f"{listed} is not world_size={world}; use world_size={total}, or one size of -1")
    if world % total:
        many = "sizes that multiply to " if len(large) > 1 else ""
        raise ValueError(f"{listed} does not divide world_size={world}; use {many}{_divisors(world, total)}")
    inferred = opened[0] if opened else "dp"
    return {"dp": 1, **sizes, inferred: known.get(inferred, world // total)}


def parse_order(order: str | None, sizes: Mapping[str, int], ep_size: int) -> tuple[list[str], tuple[str, ...] | None]:
    """Return the dims and the expert dims of an order in Megatron's spelling, both outermost first.

    As in Megatron, what is larger than 1 has to be in the order, and ep_shard stands where dp stands. fsdp is outermost
    when it is left out, since Megatron does not know it; an order without dp has ep_shard where fsdp stands.

    Args:
        order: Dims innermost first, such as "tp-cp-ep-dp-pp"; None is the default.
        sizes: Size of each dim that there is.
        ep_size: Expert parallel ranks.

    Raises:
        ValueError: For an unknown or repeated name, or one that is needed and missing.
    """
    if order is None:
        return [name for name in DEFAULT_ORDER if name in sizes], None
    tokens = order.lower().split("-")
    for token in tokens:
        if token not in _TOKENS or tokens.count(token) > 1:
            names = ", ".join(_TOKENS)
            raise ValueError(
                f"order={order!r} holds {token!r}, unknown or twice; join some of {names} by '-', each once"
            )
    for name, size in {**sizes, "ep": ep_size}.items():
        if size > 1 and name not in tokens and name != "fsdp":
            raise ValueError(f"order={order!r} does not place {name}, which is larger than 1; use '{order}-{name}'")
    shard = "fsdp" if "fsdp" in tokens and "dp" not in tokens else "dp"
    outward = [*tokens, *(name for name in _TOKENS if name not in tokens)][::-1]
    experts = {shard: "ep_shard", "ep": "ep", "tp": "etp"}
    return [name for name in outward if name in sizes], tuple(experts[name] for name in outward if name in experts)


def shortened(ranks: Sequence[int]) -> str:
    """Return a list of ranks as text; of more than 16 the first two and the last one."""
    return str(list(ranks)) if len(ranks) <= 16 else f"[{ranks[0]}, {ranks[1]}, ..., {ranks[-1]}] ({len(ranks)} ranks)"

"""Sizes of dims: one of them is inferred, and errors offer other sizes."""

from __future__ import annotations

from .checks import at_least_one, whole_number
from .messages import nearest_divisors
from .rule_error import RuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def infer_sizes(sizes: Mapping[str, object], world_size: object = None) -> dict[str, int]:
    """Return the size of every dim that was given and of dp, with the open size inferred.

    Args:
        sizes: Size by dim name (without "_size"): None when not given, -1 for the one to infer.
        world_size: Number of ranks; the product of the sizes when None, or when it is 1 and the product is more.

    Raises:
        ValueError: naming the size, the rule, the values and what to use.
    """
    known: dict[str, int] = {}
    open_dims: list[str] = []
    total = 1
    for name, given in sizes.items():
        if given is None:
            continue
        size = given if type(given) is int else whole_number(f"{name}_size", given)
        if size == -1:
            open_dims.append(name)
            size = 1
        elif size < 1:
            problem = f"{name}_size={size} must be at least 1, or -1 to infer it"
            raise RuleError(problem, {f"{name}_size": range(1, 33)}, named=False, most=1)
        known[name] = size
        total *= size
    if len(open_dims) > 1:
        listed = " and ".join(f"{name}_size=-1" for name in open_dims)
        raise ValueError(f"{listed}: only one size can be inferred; give all but one of them")
    inferred = open_dims[0] if open_dims else None if "dp" in known else "dp"
    known.setdefault("dp", 1)
    world = None if world_size is None else at_least_one("world_size", world_size)
    if world is None or (world == 1 and total > 1):
        if open_dims:
            worlds = [total * size for size in range(1, 33)]
            raise RuleError(
                f"{inferred}_size=-1 needs a world_size to be inferred from", {"world_size": worlds}, most=1
            )
        return known
    if inferred is None and total != world:
        raise unequal(known, world, total)
    if world % total:
        raise indivisible(known, world, total)
    if inferred is not None:
        known[inferred] = world // total
    return known


def unequal(known: Mapping[str, int], world: int, total: int, *, suffix: str = "_size") -> RuleError:
    """Return the error of sizes that multiply to another number than the world."""
    fits = {f"{name}{suffix}": world // (total // size) for name, size in known.items() if world % (total // size) == 0}
    options = {name: [size] for name, size in {**fits, "world_size": total}.items()}
    return RuleError(f"{_product_text(known, total, suffix)} is not world_size={world}", options)


def indivisible(known: Mapping[str, int], world: int, total: int, *, suffix: str = "_size") -> RuleError:
    """Return the error of sizes that leave no whole number for the one to infer."""
    fixed = {name: size for name, size in known.items() if size > 1}
    options: dict[str, Sequence[int]] = {}
    for name, size in fixed.items():
        if world % (total // size) == 0:
            options[f"{name}{suffix}"] = nearest_divisors(world // (total // size), size)
    if not options:
        below = world // total
        worlds = [near * total for step in range(33) for near in (below - step, below + 1 + step) if near > 0]
        options["world_size"] = worlds
    problem = f"{_product_text(fixed, total, suffix)} does not divide world_size={world}"
    alone = len(fixed) == 1 and "world_size" not in options
    return RuleError(problem, options, named=not alone, most=2 if "world_size" in options else 4)


def _product_text(sizes: Mapping[str, int], total: int, suffix: str) -> str:
    shown = {name: size for name, size in sizes.items() if size > 1} or dict(sizes)
    listed = " * ".join(f"{name}{suffix}={size}" for name, size in shown.items())
    return listed if len(shown) == 1 else f"{listed} = {total}"


def fill_sizes(dim: str, total: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes into which `dim` of size `total` is cut, with a size of -1 inferred."""
    known = 1
    open_names: list[str] = []
    filled: dict[str, int] = {}
    for name, given in sizes.items():
        size = whole_number(name, given)
        if size == -1:
            open_names.append(name)
        elif size < 1:
            raise ValueError(f"{name}={size} must be at least 1, or -1 to infer it")
        else:
            known *= size
        filled[name] = size
    if len(open_names) > 1:
        raise ValueError(f"{' and '.join(f'{name}=-1' for name in open_names)}: only one size can be inferred")
    if total % known or (known != total and not open_names) or not filled:
        listed = " * ".join(f"{name}={size}" for name, size in filled.items() if size != -1) or "no sizes"
        raise ValueError(f"{listed} = {known} does not make up {dim}_size={total}; use sizes that multiply to {total}")
    filled.update(dict.fromkeys(open_names, total // known))
    return filled

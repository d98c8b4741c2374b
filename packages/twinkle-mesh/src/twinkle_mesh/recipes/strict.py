"""Degrees that have to make up a given world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh._messages import either, nearest_divisors, would
from twinkle_mesh.sizes import at_least_one, whole

if TYPE_CHECKING:
    from collections.abc import Mapping


def fill(degrees: Mapping[str, int], world_size: int, *, inferred: str) -> dict[str, int]:
    """Return the degrees, with `inferred` worked out where it is -1.

    Raises:
        ValueError: when they do not make up the world.
    """
    world = at_least_one("world_size", world_size)
    sizes: dict[str, int] = {}
    total = 1
    for name, degree in degrees.items():
        opened = name == inferred and whole(name, degree) == -1
        sizes[name] = 1 if opened else at_least_one(name, degree)
        total *= sizes[name]
    listed = " * ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
    if degrees[inferred] == -1:
        if world % total:
            remedies = [
                f"{name}={either(nearest_divisors(world // (total // size), size))}"
                for name, size in sizes.items()
                if size > 1 and world % (total // size) == 0
            ]
            remedies = remedies or [f"world_size={world // total * total + total}"]
            raise ValueError(f"{listed} = {total} does not divide world_size={world}; {'; or '.join(remedies)} would")
        sizes[inferred] = world // total
    elif total != world:
        remedies = [
            f"{name}={world // (total // size)}" for name, size in sizes.items() if world % (total // size) == 0
        ]
        raise ValueError(f"{listed or 'all degrees of 1'} = {total} is not world_size={world}; {would(remedies)}")
    return sizes

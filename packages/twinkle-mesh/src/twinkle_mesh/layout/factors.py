"""Factors: the steps of a dim as (size, stride) pairs, outermost first.

A dim with even steps has one factor. A dim that was flattened from dims which are not neighbours has several (CuTe's
nested layouts). A dim of size 1 has none. Factors are merged where possible, so equal functions have equal factors.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Factors = tuple[tuple[int, int], ...]


def merged(factors: Iterable[tuple[int, int]]) -> Factors:
    """Return the factors without those of size 1; neighbours are joined where one continues the other."""
    result: list[tuple[int, int]] = []
    for size, stride in factors:
        if size == 1:
            continue
        if result and result[-1][1] == size * stride:
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return tuple(result)


def product(factors: Factors) -> int:
    """Return the number of coordinates of the factors."""
    total = 1
    for size, _ in factors:
        total *= size
    return total


def split(factors: Factors, inner: int) -> tuple[Factors, Factors] | None:
    """Cut a dim into an outer part and an inner part of `inner` coordinates; None where factors cannot be cut so."""
    tail: list[tuple[int, int]] = []
    for index in range(len(factors) - 1, -1, -1):
        if inner == 1:
            return factors[: index + 1], tuple(tail)
        size, stride = factors[index]
        if inner % size == 0:
            tail.insert(0, (size, stride))
            inner //= size
        elif size % inner == 0:
            tail.insert(0, (inner, stride))
            return (*factors[:index], (size // inner, stride * inner)), tuple(tail)
        else:
            return None
    return ((), tuple(tail)) if inner == 1 else None


def nested(factors: Iterable[tuple[int, int]]) -> bool:
    """Tell whether division by the largest stride first finds every coordinate. Then no rank occurs twice."""
    reach = 0
    for size, stride in sorted(factors, key=lambda factor: factor[1]):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def detect(values: Sequence[int]) -> Factors | None:
    """Return the factors of a function from its values, of which the first is 0; None where it has none."""
    length = len(values)
    if length == 1:
        return ()
    step = values[1]
    run = 1
    while run < length and values[run] == run * step:
        run += 1
    if step < 0 or length % run:
        return None
    outer = values[::run]
    if any(values[i] != outer[i // run] + i % run * step for i in range(length)):
        return None
    rest = detect(outer)
    return None if rest is None else (*rest, (run, step))


def expand(factors: Factors, offset: int) -> list[int]:
    """Return the offset plus every sum of steps, row-major with the first factor outside."""
    ranks = [offset]
    for size, stride in factors:
        steps = range(0, size * stride, stride) if stride else (0,) * size
        ranks = [base + step for base in ranks for step in steps]
    return ranks

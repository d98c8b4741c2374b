"""Factors of a dim: one (size, stride) for each even step, outermost first.

One factor stands for a dim that steps evenly, several for one that was flattened out of dims which are not neighbours
(CuTe's nested layouts), none for a dim of size 1. Factors are merged where they can be, so that equal functions have
equal factors.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Factors = tuple[tuple[int, int], ...]


def merged(factors: Iterable[tuple[int, int]]) -> Factors:
    """Return the factors without sizes of 1 and with neighbours joined where one continues the other."""
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
    """Return how many ranks the factors span."""
    total = 1
    for size, _ in factors:
        total *= size
    return total


def split(factors: Factors, inner: int) -> tuple[Factors, Factors] | None:
    """Cut a dim into an outer part and an inner part of `inner` coordinates; None where no arithmetic cut exists."""
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
    """Tell whether greedy division by the largest stride first finds every coordinate (then no rank occurs twice)."""
    reach = 0
    for size, stride in sorted(factors, key=lambda factor: factor[1]):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def detect(values: Sequence[int]) -> Factors | None:
    """Return the factors of a function given by its values (the first is 0), or None where it has none."""
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
    """Return every rank of a product of (size, stride) factors, outermost first."""
    ranks = [offset]
    for size, stride in factors:
        steps = range(0, size * stride, stride) if stride else (0,) * size
        ranks = [base + step for base in ranks for step in steps]
    return ranks

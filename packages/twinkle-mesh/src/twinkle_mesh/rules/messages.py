"""Parts of error messages."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def join_or(values: Iterable[object]) -> str:
    """Return `1, 2, 4 or 8`."""
    words = [str(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending."""
    low: list[int] = []
    high: list[int] = []
    step = 1
    while step * step <= number:
        if number % step == 0:
            low.append(step)
            if step * step != number:
                high.append(number // step)
        step += 1
    return low + high[::-1]


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """Return the divisors of `number`, those nearest to `wanted` first."""
    return sorted(divisors(number), key=lambda value: (abs(value - wanted), value))


def use_one_of(names: Iterable[object]) -> str:
    """Return `use 1, 2 or 4`."""
    return f"use {join_or(names)}"


def preview(values: Iterable[object], limit: int = 8) -> str:
    """Return the first `limit` values joined by commas."""
    shown: list[str] = []
    for value in values:
        if len(shown) == limit:
            shown.append("...")
            break
        shown.append(str(value))
    return ", ".join(shown)


def listed_or_digest(numbers: Sequence[int]) -> str:
    """Return the numbers joined by commas; of more than 16 the first ones, the last one and a digest of all."""
    if len(numbers) <= 16:
        return ", ".join(map(str, numbers))
    from hashlib import sha256

    digest = sha256(",".join(map(str, numbers)).encode()).hexdigest()[:16]
    return f"{preview(numbers, 3)}, {numbers[-1]}: {len(numbers)} with sha256 {digest}"

"""The number of rows to send if the data ranks do not divide them: all, or by the rule strict, pad or drop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Sequence


def rows_to_send(uneven: str | None, total: int, count: int, name: str) -> int:
    """Number of rows to send: above `total` with "pad", below with "drop".

    Args:
        uneven: "strict", "pad" or "drop"; None splits as evenly as possible, and ranks may get no rows.
        total: Rows of the arguments, at or above 0.
        count: Number of shares, at or above 1.
        name: Class.method, for messages.

    Raises:
        DispatchError: The function does not take this total.
    """
    rest = total % count
    if uneven is None or (not rest and total):
        return total
    if uneven == "strict":
        near = [size for size in (total - rest, total - rest + count) if size]
        raise DispatchError(
            f"{name} takes equal shares only (uneven='strict'): {total} rows do not divide over {count} data ranks; "
            f"use {' or '.join(map(str, near))}"
        )
    if uneven == "pad":
        if total == 0:
            raise DispatchError(f"{name} pads by repeating rows (uneven='pad'), and there are 0 rows; give at least 1")
        return total + count - rest
    if total < count:
        raise DispatchError(
            f"{name} drops the rows that do not divide (uneven='drop'): of {total} rows over {count} data ranks none "
            f"would be left; give at least {count}"
        )
    return total - rest


def mask_of(total: int, count: int, index: int) -> list[bool]:
    """For each row of a padded share, whether it is one of the caller's rows, and not a repeated one.

    Args:
        total: Rows of the caller, at or above 1.
        count: Number of shares, at or above 1.
        index: Index of the share.
    """
    part = balanced_slice(rows_to_send("pad", total, count, ""), count, index)
    return [row < total for row in range(part.start, part.stop)]


def real_rows(given: Sequence[int], total: int) -> list[int]:
    """The number of rows of each share that are the caller's, and not repeated ones, which come last.

    Args:
        given: Rows of each share, in the order of the data ranks.
        total: Rows of the caller.
    """
    left = total
    out = []
    for rows in given:
        out.append(min(rows, left))
        left -= out[-1]
    return out

"""Makes the error for a call whose time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.errors import CallTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def lateness(
    head: str, line: str, done: Sequence[int], pending: Sequence[int], stacks: Mapping[int, str]
) -> CallTimeoutError:
    """The error for a late call.

    Args:
        head: First line: the late call and its ranks.
        line: File and line of the driver that made the call.
        done: Ranks that are done.
        pending: Ranks that are not.
        stacks: Stacks of the pending ranks, as text by rank; the error names the ranks without one.
    """
    places: dict[str, list[int]] = {}
    for rank in pending:
        places.setdefault(stacks.get(rank, "").rstrip() or "its stack is not known", []).append(rank)
    rows = [head, f"  called from {line}"]
    for place, there in places.items():
        rows.append(f"  rank{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}:")
        rows.extend("    " + row for row in place.splitlines())
    return CallTimeoutError("\n".join(rows), done, pending)

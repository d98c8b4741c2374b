"""What is raised when the time of a call is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.errors import CallTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def lateness(
    head: str, line: str, done: Sequence[int], pending: Sequence[int], stacks: Mapping[int, str]
) -> CallTimeoutError:
    """The error of a call that is late.

    Args:
        head: What is late, and on which ranks.
        line: File and line of the driver that made the call.
        done: Ranks that are done.
        pending: Ranks that are not.
        stacks: Where these are, as text by rank; where one is not among them, the error says so.
    """
    places: dict[str, list[int]] = {}
    for rank in pending:
        places.setdefault(stacks.get(rank, "").rstrip() or "where it is is not known", []).append(rank)
    rows = [head, f"  called from {line}"]
    for place, there in places.items():
        rows.append(f"  rank{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}:")
        rows.extend("    " + row for row in place.splitlines())
    return CallTimeoutError("\n".join(rows), done, pending)

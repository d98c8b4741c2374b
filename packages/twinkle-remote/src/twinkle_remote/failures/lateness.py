"""Makes the error for a call whose time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.errors import CallTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.spec import FunctionSpec


def lateness(
    head: str, line: str, done: Sequence[int], pending: Sequence[int], stacks: Mapping[int, str], alone: str = ""
) -> CallTimeoutError:
    """The error for a late call.

    Args:
        head: First line: the late call and its ranks.
        line: File and line of the driver that made the call.
        done: Ranks that are done.
        pending: Ranks that are not.
        stacks: Stacks of the pending ranks, as text by rank; the error names the ranks without one.
        alone: What `called_alone` says of the called ranks.
    """
    places: dict[str, list[int]] = {}
    for rank in pending:
        places.setdefault(stacks.get(rank, "").rstrip() or "its stack is not known", []).append(rank)
    rows = [head, f"  called from {line}"]
    for place, there in places.items():
        rows.append(f"  rank{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}:")
        rows.extend("    " + row for row in place.splitlines())
    rows += [f"  {alone}"] if alone else []
    return CallTimeoutError("\n".join(rows), done, pending)


def called_alone(spec: FunctionSpec, ranks: Sequence[int], size: int) -> str:
    """The hint for a late call of some ranks: their body may wait in a collective for those that were not called.

    Args:
        spec: Options of the function.
        ranks: The called ranks.
        size: Ranks of the component.
    """
    if spec.collective or len(ranks) >= size:
        return ""
    return (
        f"it was called on {len(ranks)} of {size} ranks: a body that runs collectives over all of them waits for the "
        "others for ever; say remote_function(collective=True)"
    )

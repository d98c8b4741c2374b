"""Raises failures of workers on the driver: the first one, with the others under it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from twinkle_remote.errors import ReplyLostError, WorkerDiedError
from twinkle_remote.failures.lost_peer import is_mismatch, lost_a_peer
from twinkle_remote.failures.reraise import combined_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.failure import Failure

_FOLDED = 8
_LISTED = 64  # workers with the same error that are named


def raise_failures(name: str, group: str, failures: Sequence[Failure], line: str) -> NoReturn:
    """Raise the first failure that is not a consequence of another, with the others under it.

    Args:
        name: Class.method of the call.
        group: Name of the group that was called.
        failures: At least one, in completion order.
        line: File and line of the driver that made the call.

    Raises:
        WorkerDiedError: The first failure is a lost worker.
        ReplyLostError: It is the lost answer of a worker that lives.
        RemoteCallError: In all other cases; also an instance of the type that the worker raised.
    """
    mismatch = any(map(is_mismatch, failures))
    first = min(failures, key=lambda failure: (failure.upstream, lost_a_peer(failure) or (mismatch and failure.died)))
    rest = [failure for failure in failures if failure is not first and not (failure.upstream and failure == first)]
    text = _message(name, group, first, rest, line)
    if first.died:
        raise WorkerDiedError(text)
    if first.unanswered:
        raise ReplyLostError(text)
    original = first.exception()
    error = combined_error(original, text, (first, *rest))
    context = first.live if original is None or first.live is not None else original.__context__
    vars(BaseException)["__context__"].__set__(error, context)  # for debuggers; the text is complete
    raise error from None if original is None else original.__cause__


def _message(name: str, group: str, first: Failure, rest: Sequence[Failure], line: str) -> str:
    if first.died:
        head = f"{first.label} died during {first.method or name} on {first.node or 'an unknown node'}: {first.message}"
    elif first.unanswered:
        head = f"{first.label} lives, but its answer to {first.method or name} is lost ({first.node}): {first.message}"
    else:
        head = f"{first.method} failed on {first.label} (node {first.node}): {first.type_name}: {first.message}"
    if first.upstream:
        head = f"{name} did not run, because the call that makes its argument failed: {head}"
    rows = [head]
    if line:
        rows.append(f"  called from {line}")
    if first.trace:
        rows.append("  on the worker:")
        rows.extend("    " + row for row in first.trace.splitlines())
    if first.note:
        rows.append(f"  {first.note}")
    if rest:
        rows.append(f"  and {len(rest)} more of group {group!r}, after it or because of it:")
        folded: dict[str, list[str]] = {}
        for failure in rest:
            folded.setdefault(f"{failure.type_name}: {failure.message[:200]}", []).append(failure.label)
        rows.extend(f"    {_listed(labels)}: {what}" for what, labels in list(folded.items())[:_FOLDED])
        if len(folded) > _FOLDED:
            rows.append(f"    and {len(folded) - _FOLDED} other errors")
    return "\n".join(rows)


def _listed(labels: Sequence[str]) -> str:
    rest = len(labels) - _LISTED
    return ", ".join(labels[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")

"""Reports of failures: the first one, raised on the caller with the others under it; late calls; lost peers.

An iterator's end, and an error that Python would take for one in the caller's loop, are distinguished here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from twinkle_remote.context import users_part
from twinkle_remote.errors import CallTimeoutError, RemoteCallError, ReplyLostError, WorkerDiedError
from twinkle_remote.failures.travel import combined_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.messages import Failure, Outcome
    from twinkle_remote.protocol.spec import FunctionSpec

# errors of Gloo and NCCL on ranks that wait for an ended rank
_TYPES = ("RuntimeError", "DistBackendError", "DistNetworkError", "CollectiveError", "CollectiveTimeoutError")
_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
    "no answer from rank(s)",
)
CAUSE_SECONDS = 1.0  # a cause may be reported after what follows from it
_WITNESS_SECONDS = 0.5  # in a collective the peers of a dead worker fail at once


def lost_a_peer(failure: Failure) -> bool:
    """Whether a failure reports a process group's lost connection to an ended process."""
    named = failure.type_name.rpartition(".")[2] in _TYPES
    return named and not failure.died and any(text in failure.message for text in _TEXTS)


def raised_itself(outcome: Outcome) -> bool:
    """Whether a rank failed by what its own code raised, not by the end of another rank or of its own process."""
    failure = outcome.failure
    return failure is not None and not (failure.died or failure.upstream or failure.unanswered or lost_a_peer(failure))


def seconds_for_cause(failures: Sequence[Failure]) -> float:
    """Seconds that the cause, or what peers report of a death, may take to arrive; 0 if a failure has a cause."""
    if all(map(lost_a_peer, failures)):
        return CAUSE_SECONDS
    return _WITNESS_SECONDS if all(map(_died_now, failures)) else 0.0


def _died_now(failure: Failure) -> bool:
    return failure.died and not failure.upstream and not failure.repeated


_FOLDED = 8
_LISTED = 64  # workers with the same error that are named


def raise_failures(name: str, group: str, failures: Sequence[Failure], line: str) -> NoReturn:
    """Raise the first failure, in completion order, that is not a consequence of another, with the others under it.

    Raises:
        WorkerDiedError: The first failure is a lost worker.
        ReplyLostError: It is the lost answer of a worker that lives.
        RemoteCallError: In all other cases; also an instance of the type that the worker raised.
    """
    first = min(failures, key=lambda failure: (failure.upstream, lost_a_peer(failure)))
    rest = [failure for failure in failures if failure is not first and not (failure.upstream and failure == first)]
    if not first.label and first.live is not None:  # of no worker, but of the session that called it: it is complete
        raise first.live
    text = _message(name, group, first, rest, line)
    if first.died:
        raise WorkerDiedError(text)
    if first.unanswered:
        raise ReplyLostError(text)
    original = first.exception()
    error = combined_error(original, text, (first, *rest))
    context = first.live if original is None or first.live is not None else original.__context__
    vars(BaseException)["__context__"].__set__(error, context)  # for debuggers; the text is complete
    if first.live is not None:  # it ran in this process: a debugger finds the method's frames behind the caller's
        error = error.with_traceback(users_part(first.live.__traceback__))
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
    """The hint for a late call of some ranks: their body may wait in a collective for those that were not called."""
    if spec.collective or len(ranks) >= size:
        return ""
    return (
        f"it was called on {len(ranks)} of {size} ranks: a body that runs collectives over all of them waits for the "
        "others for ever; say remote_function(collective=True)"
    )


SIGNALS = (StopIteration, StopAsyncIteration)


def no_end(error: BaseException) -> BaseException:
    """The error for the caller's loop: the same one, or one of its text if Python would take it as the loop's end."""
    if not isinstance(error, SIGNALS):
        return error
    if isinstance(error, RemoteCallError):
        return combined_error(RuntimeError(str(error)), str(error), error.failures)  # as PEP 479
    return RuntimeError(f"{type(error).__name__} was raised, which would end the loop: {error}")

"""Combines the results of the workers into one value.

On a mesh each data rank counts once, in data order: copies on tensor, context and pipeline peers are not data. If the
workers received rows of their own (dispatch "slice" on a mesh), each worker counts, in rank order.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CollectError, StoreTimeoutError, TwinkleError, WorkerDiedError
from twinkle_remote.failures.report import lateness
from twinkle_remote.protocol.spec import COLLECT
from twinkle_remote.rows.concat import concat_results
from twinkle_remote.rows.cut import rows_of, take
from twinkle_remote.tables.nodes import Combined
from twinkle_remote.tables.plan import order_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.tables.nodes import Piece, Rows


def ranks_read(spec: FunctionSpec, ranks: Sequence[int], mesh: DeviceMesh | None, *, each: bool) -> Sequence[int]:
    """The called ranks whose values a collect reads, in its reading order."""
    reads = "all" if callable(spec.collect) else COLLECT[spec.collect].reads
    if reads == "first":
        return ranks[:1]
    if reads == "all" or mesh is None or (each and reads == "shares"):
        return ranks
    if len(ranks) == mesh.world_size:
        return mesh.collect_ranks
    return [rank for rank in mesh.collect_ranks if rank in ranks] if spec.calls_one else ranks


def combine_rule(spec: FunctionSpec, ranks: Sequence[int]) -> Any:
    """The rule that combines the values: "rows", "list", "one", or the collect itself, a word or a callable."""
    if callable(spec.collect):
        return spec.collect
    combine = COLLECT[spec.collect].combine
    if combine == "list" and spec.collect == "none" and len(ranks) == 1:
        return "one"
    return spec.collect if callable(combine) else combine


def combined_by(spec: FunctionSpec, ranks: Sequence[int], mesh: DeviceMesh | None, name: str = "value") -> Combined:
    """The way in which values of called ranks are combined into one, as when they are handed to another call."""
    return Combined((), combine_rule(spec, ranks), mesh, name)


def combine(by: Combined, values: Sequence[Any]) -> Any:
    """Combine the values into one.

    Args:
        by: How. Where it has the numbers of the rows that each rank received, the joined rows are put into their order.
        values: Values in the order of `ranks_read`; never mutated.

    Raises:
        CollectError: The values do not fit the collect.
    """
    how = by.how
    if how == "one":
        return values[0]
    if how == "list":
        return list(values)
    if callable(how):
        return how(list(values), by.mesh)
    if how == "rows":
        return _in_order(concat_results(values, f"{by.name} result"), values, by.numbers, by.name)
    made, given = COLLECT[how].combine, by.rows_given
    assert callable(made)
    weights = [float(rows or 0) for rows in given] if None not in given and any(given) else None
    return made(values, weights, f"{by.name} result")


def _in_order(joined: Any, values: Sequence[Any], numbers: Sequence[Rows | None], name: str) -> Any:
    """The joined rows in the order of the rows that the ranks were given; `combine` has the arguments."""
    known = [rows for rows in numbers if rows is not None]
    if not known or len(known) < len(values):
        return joined
    made = [rows_of(value, "result") for value in values]
    given = [len(rows) for rows in known]
    if made != given:
        raise CollectError(
            f"{name}: balance= puts results into the order of the rows, so a method returns one row for each that it "
            f"is given, but for {given} rows the ranks returned {made}; return one row for each, or use balance=False"
        )
    return take(joined, order_back(known))


_log = logging.getLogger("twinkle.remote")
_warned: set[str] = set()


def warn_whole(name: str, argument: str, ranks: int) -> None:
    """Say once for each function that an argument with rows went whole to ranks whose results are joined."""
    if name not in _warned:
        _warned.add(name)
        _log.warning(
            "%s: dispatch='slice' divides lists only, so %s went whole to each of %d workers, and the rows of all "
            "results are joined: use dispatch='slice_dp', pass a list, or mark it with Replicate(value)",
            name,
            argument,
            ranks,
        )


_LEAST_SECONDS = 0.5  # least time for reading a result, so that a near one arrives even at a timeout of 0


def read_outcome(
    call: PendingCall, outcome: Outcome, piece: Piece | None, timeout: float | None, began: float
) -> tuple[Any, int]:
    """The value of an outcome, or a piece of it, and the bytes that came for it; `PendingCall.fetch` has the arguments.

    Raises:
        CallTimeoutError: It was not read in time.
        WorkerDiedError: The process that held it has ended.
        CollectError: It cannot be opened here.
    """
    left = None if timeout is None else max(_LEAST_SECONDS, began + timeout - time.monotonic())
    rank, line = outcome.rank, call.line
    try:
        return call.runtime.backend.store.get(outcome.payload, *(piece or (None, None)), left)
    except StoreTimeoutError as error:
        what = f"the result of {call.label(rank)} was not read within {timeout or 0.0:g} s: {error}"
        head = f"{call.name} on {call.call.where()} is done, but {what}"
        done = [other for other in call.ranks if other != rank]
        raise lateness(head, line, done, [rank], call.group.stacks([call.reply(rank)])) from None
    except WorkerDiedError as error:
        head = f"the result of {call.name} on {call.label(rank)} cannot be read: {error}"
        raise WorkerDiedError(f"{head}\n  called from {line}") from error
    except TwinkleError:
        raise
    except Exception as error:  # unpickling a user's class may raise anything
        head = f"{call.name}: the result of {call.label(rank)} arrived, but cannot be opened here"
        raise CollectError(f"{head}: {type(error).__name__}: {error}\n  called from {line}") from error

"""What a stream tells of the rows of a batch, found by the batch itself."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

from twinkle_remote.call.lazy import Lazy, tell_rows, told_rows
from twinkle_remote.streams.told import RowsInfo

if TYPE_CHECKING:
    from typing import Any

    from twinkle_remote.streams.telemetry.stream_stats import StreamStats

_log = logging.getLogger("twinkle.remote")

_told: dict[int, tuple[weakref.ref[Any], RowsInfo]] = {}


def tell(batch: Any, info: RowsInfo) -> None:
    """Remember what is told of a batch, as long as the batch exists; lists, tuples and dicts cannot be remembered."""
    if type(batch) is Lazy:
        tell_rows(batch, info)
        return
    key = id(batch)
    try:
        _told[key] = weakref.ref(batch, lambda _: _told.pop(key, None)), info
    except TypeError:
        return


def rows_info(batch: object) -> RowsInfo:
    """Versions, lags and indices of the rows of a batch that a stream delivered.

    A lazy batch has the same as `batch.info`. Workers are not told: a call gives it to them as an argument.

    Args:
        batch: As the stream delivered it.

    Raises:
        ValueError: No stream has delivered it, or it is a list, tuple or dict of this process: `stream.info` tells of
            these until the next batch.
    """
    found: object = told_rows(batch) if isinstance(batch, Lazy) else None
    kept = _told.get(id(batch))
    if kept is not None and kept[0]() is batch:
        found = kept[1]
    if not isinstance(found, RowsInfo):
        kind = "lazy result" if isinstance(batch, Lazy) else type(batch).__name__
        raise ValueError(f"nothing is told of this {kind}: use stream.info, or the batch as a stream delivered it")
    return found


def tell_of_nothing(stats: StreamStats, max_lag: int | None) -> None:
    """Warn of an epoch that ends without a batch, though it had rows."""
    if stats.dropped or stats.set_aside:
        _log.warning(
            "the epoch of a stream ends without a batch: %d rows were dropped, because versions came faster than rows "
            "(max_lag=%s), and %d were set aside",
            stats.dropped,
            max_lag,
            stats.set_aside,
        )

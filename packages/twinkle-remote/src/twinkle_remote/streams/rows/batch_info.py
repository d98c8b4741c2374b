"""The info of the rows of a batch that a stream delivered, found by the batch itself."""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING

from twinkle_remote.call.lazy_values.lazy import Lazy, get_rows_info, set_rows_info
from twinkle_remote.streams.rows.rows_info import RowsInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from twinkle_remote.streams.telemetry.stream_stats import StreamStats

_log = logging.getLogger("twinkle.remote")

_infos: dict[int, tuple[Callable[[], Any], RowsInfo]] = {}


def nothing_to_forget() -> None:
    """No batch is kept."""


def set_info(batch: Any, info: RowsInfo) -> Callable[[], None]:
    """Remember the info of a batch, as long as the batch exists.

    Returns:
        What a stream calls before it makes the next batch, and when it ends: a list, tuple or dict has no weak
        references, and is kept until then.
    """
    if type(batch) is Lazy:
        set_rows_info(batch, info)
        return nothing_to_forget
    key, known = id(batch), _infos  # the name of a module is None when the interpreter ends
    try:
        known[key] = weakref.ref(batch, lambda _: known.pop(key, None)), info
    except TypeError:
        kept = _infos[key] = (lambda: batch), info
        return partial(_forget, key, kept)
    return nothing_to_forget


def _forget(key: int, kept: tuple[Callable[[], Any], RowsInfo]) -> None:
    if _infos.get(key) is kept:  # a stream over that stream may have set the info of the same batch since
        del _infos[key]


def rows_info(batch: object) -> RowsInfo:
    """Versions, lags and indices of the rows of a batch that a stream delivered.

    It works in every mode and for every batch. A lazy batch also has the attribute `batch.info`; a batch of mode
    `local`, or of a plain function, does not. Workers do not have this information: pass it to a call as an argument.

    Args:
        batch: As the stream delivered it.

    Raises:
        ValueError: No stream has delivered it. Or it is a list, tuple or dict of this process, and its stream has
            delivered a later batch or is closed.
    """
    found: object = get_rows_info(batch) if isinstance(batch, Lazy) else None
    kept = _infos.get(id(batch))
    if kept is not None and kept[0]() is batch:
        found = kept[1]
    if not isinstance(found, RowsInfo):
        kind = "lazy result" if isinstance(batch, Lazy) else type(batch).__name__
        raise ValueError(
            f"nothing is known of this {kind}: use the batch as a stream delivered it, before it is asked for the next "
            "one; stream.info has that of its latest batch"
        )
    return found


def warn_of_no_batch(stats: StreamStats, max_lag: int | None) -> None:
    """Warn of an epoch that ends without a batch, though it had rows."""
    if stats.dropped or stats.set_aside:
        _log.warning(
            "the epoch of a stream ends without a batch: %d rows were dropped, because versions came faster than rows "
            "(max_lag=%s), and %d were set aside",
            stats.dropped,
            max_lag,
            stats.set_aside,
        )

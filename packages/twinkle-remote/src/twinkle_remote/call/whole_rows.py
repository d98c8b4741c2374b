"""The warning that a call divided nothing and joins rows: each row comes back once for each worker."""

from __future__ import annotations

import logging

_log = logging.getLogger("twinkle.remote")
_warned: set[str] = set()


def warn_whole(name: str, argument: str, ranks: int) -> None:
    """Say once for each function that an argument with rows went whole to ranks whose results are joined.

    Args:
        name: Class.method.
        argument: The argument and its type.
        ranks: Number of called ranks, at or above 2.
    """
    if name not in _warned:
        _warned.add(name)
        _log.warning(
            "%s: dispatch='slice' divides lists only, so %s went whole to each of %d workers, and the rows of all "
            "results are joined: use dispatch='slice_dp', pass a list, or mark it with Replicate(value)",
            name,
            argument,
            ranks,
        )

"""Pauses Python's collector of cycles while many objects are made that live on."""

from __future__ import annotations

import gc
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

WIDE_RANKS = 1024


class _Pauses:
    """The pauses of this process, which may overlap in several threads."""

    def __init__(self) -> None:
        self.lock = RLock()  # a collection that begins inside may run a finalizer, which may pause too
        self.count = 0
        self.resume = False


_pauses = _Pauses()


@contextmanager
def collector_paused(*, lasting: bool = False) -> Iterator[None]:
    """Pause the collector: it would walk the many new objects again and again. Nothing inside should wait for long.

    Args:
        lasting: What is made has no cycles and is kept: it joins the collector's old objects and is not walked when the
            collector runs again. Where the user has frozen objects, it is walked, for they must stay frozen.
    """
    with _pauses.lock:
        if not _pauses.count:
            _pauses.resume = gc.isenabled()
            gc.disable()
        _pauses.count += 1
    try:
        yield
    finally:
        with _pauses.lock:
            _pauses.count -= 1
            if not _pauses.count and _pauses.resume:
                if lasting and gc.get_freeze_count() == 0:
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


def paused_for(ranks: int) -> AbstractContextManager[None]:
    """Pause the collector for the work on a call, or on answers, of at least `WIDE_RANKS` ranks."""
    return collector_paused() if ranks >= WIDE_RANKS else nullcontext()

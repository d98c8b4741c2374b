"""Transports that keep what is staged: a table of this process, and the backend's store, which moves it to others."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_remote.backends.support import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(slots=True)
class _Offer:
    """Staged parts, and how many ranks of this process have not got them."""

    parts: Sequence[Tensor]
    readers: int


_LOCK = threading.Lock()
_KEPT: dict[tuple[str, int, int], _Offer] = {}
"""What sources of this process staged for targets of this process, by sync, version and transfer."""


def put_here(sync: str, version: int, index: int, parts: Sequence[Tensor], readers: int) -> None:
    """Keep parts until so many ranks of this process have got them."""
    with _LOCK:
        _KEPT[sync, version, index] = _Offer(parts, readers)


def get_here(sync: str, version: int, index: int) -> Sequence[Tensor]:
    """The parts that a source of this process has staged."""
    with _LOCK:
        kept = _KEPT[sync, version, index]
        kept.readers -= 1
        if not kept.readers:
            del _KEPT[sync, version, index]
        return kept.parts


def drop_here(sync: str, version: int | None = None) -> None:
    """Drop what no rank has got of a sync's versions but this one."""
    with _LOCK:
        for key in [key for key in _KEPT if key[0] == sync and key[1] != version]:
            del _KEPT[key]


class StagedParts:
    """Staged parts as one stored value, which is no list of rows.

    Args:
        tensors: On the host.
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tuple(tensors)

    def __reduce__(self) -> tuple[type[StagedParts], tuple[tuple[Tensor, ...]]]:
        return StagedParts, (self.tensors,)


def put(parts: Sequence[Tensor]) -> object:
    """Copy parts into the store of this host; it keeps them as long as somebody has the handle that is returned."""
    handle, _ = running().backend.store.keep(StagedParts(parts))
    return handle


def get(handle: object, timeout: float) -> Sequence[Tensor]:
    """The parts of a handle, which waits until they are on this host.

    Raises:
        StoreTimeoutError: They have not arrived in time.
        WorkerDiedError: The process that had staged them has ended.
    """
    parts, _ = running().backend.store.get(handle, timeout=timeout)
    assert isinstance(parts, StagedParts)
    return parts.tensors

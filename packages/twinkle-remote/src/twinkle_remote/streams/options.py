"""The options of `stream`, for a type checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from os import PathLike

    from twinkle_remote.streams.rules import Order, Stale


class StreamOptions(TypedDict, total=False):
    """The options of `stream`."""

    rows: int | None
    ahead: int
    order: Order
    max_lag: int | None
    stale: Stale
    chunk: int | None
    at_once: int | None
    spool: str | PathLike[str] | None
    progress: bool
    patience: float | None
    weights_of: object

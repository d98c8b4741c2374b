"""The options of a stream: as `stream` takes them, and those of its schedule, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from twinkle_remote.sessions.in_flight.patience import check_patience

if TYPE_CHECKING:
    from os import PathLike

Order = Literal["arrival", "source"]
Stale = Literal["use", "wait", "redo", "drop"]

_ORDERS = ("arrival", "source")
_STALE = ("use", "wait", "redo", "drop")


class StreamOptions(TypedDict, total=False):
    """The keywords of `stream`, which documents them."""

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


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The options by which rows are begun and delivered; see `stream`.

    Attributes:
        rows: Rows of a delivered batch, at or above 1; None keeps the batches of the source.
        ahead: Rows at work or finished beyond those that the loop uses; 0 is the synchronous loop. Where the source's
            batches are kept and complete ones wait for an older one, the rest of that one is begun, too.
        order: Deliver what is finished ("arrival"), or in the order of the source.
        max_lag: Versions between a row's begin and its use, at or above 0; None sets no bound.
        stale: What becomes of a row that is older than `max_lag`.
        chunk: Rows of one call, at or above 1. None: what waits, up to what the stage takes at a time.
        at_once: Calls on each data rank at a time, at or above 1. None: as many as its worker runs at once.
        patience: Seconds, above 0, after which a chunk that is still at work is named; None for never.
    """

    rows: int | None = None
    ahead: int = 0
    order: Order = "source"
    max_lag: int | None = None
    stale: Stale = "wait"
    chunk: int | None = None
    at_once: int | None = None
    patience: float | None = 60.0

    def __post_init__(self) -> None:
        if self.rows is not None:
            _check_count("rows", self.rows, 1, "leave it out to keep the batches of the source")
        _check_count("ahead", self.ahead, 0, "0 is the synchronous loop")
        if self.max_lag is not None:
            _check_count("max_lag", self.max_lag, 0, "leave it out for no bound")
        if self.chunk is not None:
            _check_count("chunk", self.chunk, 1, "a chunk is the rows of one call; leave it out for what waits")
        if self.at_once is not None:
            _check_count("at_once", self.at_once, 1, "it counts the calls on one data rank")
        check_patience(self.patience)
        _check_choice("order", self.order, _ORDERS)
        _check_choice("stale", self.stale, _STALE)


def _check_count(name: str, value: object, least: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, got {value!r}; {hint}")
    if value < least:
        raise ValueError(f"{name}={value} is below {least}; {hint}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}")

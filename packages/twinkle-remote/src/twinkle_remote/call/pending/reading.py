"""Reads the value of an outcome to this process; what goes wrong names the call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote.call.tables.handed_value import read_piece
from twinkle_remote.errors import CollectError, StoreTimeoutError, TwinkleError, WorkerDiedError
from twinkle_remote.failures.lateness import lateness
from twinkle_remote.protocol.handed import HandedPiece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Store, WorkerGroup
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.messages import Outcome

_LEAST_SECONDS = 0.5  # least time for reading a result, so that a near one arrives even at a timeout of 0


class AnsweredCall(Protocol):
    """A call whose outcome is read, as its reader needs it.

    Attributes:
        name: Class.method.
        call: The call as it was made.
    """

    name: str
    call: Call

    @property
    def line(self) -> str:
        """File and line of the caller."""

    @property
    def ranks(self) -> Sequence[int]:
        """Its ranks."""

    @property
    def origin(self) -> tuple[object, WorkerGroup]:
        """Its runtime and its group."""

    def label(self, rank: int) -> str:
        """The short name of a called worker."""


def read_outcome(
    call: AnsweredCall, store: Store, outcome: Outcome, piece: HandedPiece | None, timeout: float | None, began: float
) -> tuple[Any, int]:
    """The value of an outcome, or a piece of it, and the bytes that came for it.

    Args:
        call: The call.
        store: The store of this process.
        outcome: The outcome of one rank.
        piece: Of its payload; None for the whole value.
        timeout: Seconds for waiting and reading together; None for no limit.
        began: Start of the wait, in monotonic seconds.

    Raises:
        CallTimeoutError: It was not read in time.
        WorkerDiedError: The process that held it has ended.
        CollectError: It cannot be opened here.
    """
    left = None if timeout is None else max(_LEAST_SECONDS, began + timeout - time.monotonic())
    try:
        return read_piece(store, piece or HandedPiece(outcome.payload), left)
    except StoreTimeoutError as error:
        raise _unread(call, outcome.rank, timeout or 0.0, error) from None
    except WorkerDiedError as error:
        head = f"the result of {call.name} on {call.label(outcome.rank)} cannot be read: {error}"
        raise WorkerDiedError(f"{head}\n  called from {call.line}") from error
    except TwinkleError:
        raise
    except Exception as error:  # unpickling a user's class may raise anything
        head = f"{call.name}: the result of {call.label(outcome.rank)} arrived, but cannot be opened here"
        text = f"{head}: {type(error).__name__}: {error}\n  called from {call.line}"
        raise CollectError(text) from error


def _unread(call: AnsweredCall, rank: int, seconds: float, why: object) -> Exception:
    """The error that the result of a rank was not read in time."""
    done = [other for other in call.ranks if other != rank]
    head = (
        f"{call.name} on {call.call.where()} is done, but the result of {call.label(rank)} was not read within "
        f"{seconds:g} s: {why}"
    )
    return lateness(head, call.line, done, [rank], call.origin[1].stacks([rank]))

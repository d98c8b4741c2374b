"""Reads the value of an outcome to this process; what goes wrong names the call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote.errors import CallTimeoutError, CollectError, StoreTimeoutError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.messages import Outcome

_LEAST_SECONDS = 0.5  # least time for reading a result, so that a near one arrives even at a timeout of 0


class AnsweredCall(Protocol):
    """What is asked of a call whose outcome is read.

    Attributes:
        name: Class.method.
    """

    name: str

    @property
    def line(self) -> str:
        """File and line of the caller."""

    def label(self, rank: int) -> str:
        """The short name of a called worker."""

    def unread(self, rank: int, seconds: float, why: object) -> CallTimeoutError:
        """The error that the result of a rank was not read in time."""


def read_outcome(
    call: AnsweredCall, store: Store, outcome: Outcome, timeout: float | None, began: float, rows: slice
) -> tuple[Any, int]:
    """The value of an outcome, or rows of it, and the bytes that came for it.

    Args:
        call: The call.
        store: The store of this process.
        outcome: The outcome of one rank.
        timeout: Seconds for waiting and reading together; None for no limit.
        began: Start of the wait, in monotonic seconds.
        rows: The rows; all by default of `slice`.

    Raises:
        CallTimeoutError: It was not read in time.
        WorkerDiedError: The process that held it has ended.
        CollectError: It cannot be opened here.
    """
    left = None if timeout is None else max(_LEAST_SECONDS, began + timeout - time.monotonic())
    try:
        return store.get(outcome.payload, rows.start, rows.stop, timeout=left)
    except StoreTimeoutError as error:
        raise call.unread(outcome.rank, timeout or 0.0, error) from None
    except WorkerDiedError as error:
        head = f"the result of {call.name} on {call.label(outcome.rank)} cannot be read: {error}"
        raise WorkerDiedError(f"{head}\n  called from {call.line}") from error
    except TwinkleError:
        raise
    except Exception as error:  # unpickling a user's class may raise anything
        head = f"{call.name}: the result of {call.label(outcome.rank)} arrived, but cannot be opened here"
        text = f"{head}: {type(error).__name__}: {error}\n  called from {call.line}"
        raise CollectError(text) from error

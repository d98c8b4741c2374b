"""The error types: one root, and a remote error that is also an instance of the raised type."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.messages import Failure


class TwinkleError(Exception):
    """Root of all errors of twinkle."""


class NotInitializedError(TwinkleError):
    """A component was built or called before `twinkle.initialize`, after `shutdown`, or after its `release`."""


class AlreadyInitializedError(TwinkleError):
    """`initialize` was called again with other arguments; the message shows the difference."""


class BackendError(TwinkleError, ValueError):
    """No backend has this name, or the backend does not take an option."""


class DispatchError(TwinkleError, ValueError):
    """The arguments of a call cannot be divided over its workers."""


class RowIndexError(DispatchError, IndexError):
    """A table has no row of this number."""


class ColumnError(DispatchError, KeyError):
    """A table has no column of this name."""

    def __str__(self) -> str:  # KeyError shows the repr
        return str(self.args[0]) if self.args else ""


class NoTableError(DispatchError, TypeError):
    """A value has no rows, or no columns, and rows or columns of it were asked for."""


class CollectError(TwinkleError, ValueError):
    """The results of a call do not have the shape that its collect needs."""


class PlacementError(TwinkleError):
    """A group or a component cannot be placed: unknown name, too few devices, a mesh that does not fit."""


class RemoteAttributeError(TwinkleError, AttributeError):
    """A handle's attribute is not a remote function."""


class RemoteCallError(TwinkleError):
    """A method raised on a worker.

    The caller's exception is also an instance of the type that was raised there, so `except KeyError` and
    `except RemoteCallError` both catch it.

    Attributes:
        failures: The failure of each failed rank, in completion order.
    """

    failures: Sequence[Failure] = ()
    _text: str = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Do nothing: the `__init_subclass__` of a user's exception must not run for these types."""

    def __str__(self) -> str:
        return self._text or super().__str__()


class WorkerDiedError(TwinkleError):
    """A worker process ended, or its node was lost, before it answered."""


BEFORE_IT_BEGAN = "it was cancelled before it began"


class CallCancelledError(TwinkleError):
    """A call was cancelled: by `Lazy.cancel`, or an async one by Ctrl-C, its deadline, or the end of the session."""


class CircularCallError(TwinkleError):
    """A `def` method waits for a call that it has made to its own rank, which runs it after the method."""


class ReplyLostError(TwinkleError):
    """A worker is alive, but its answer was lost: the call may or may not have run."""


class SessionLostError(TwinkleError):
    """The server no longer knows this client: it was restarted or closed, or the client's lease has ended."""


class StoreTimeoutError(TwinkleError, TimeoutError):
    """A stored value was not read within the time limit."""


class CallTimeoutError(TwinkleError, TimeoutError):
    """A call exceeded its deadline.

    Attributes:
        done: Ranks that had answered.
        pending: Ranks that had not.
    """

    def __init__(self, message: str, done: Sequence[int] = (), pending: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.done = tuple(done)
        self.pending = tuple(pending)

    def __reduce__(self) -> tuple[type[CallTimeoutError], tuple[str, tuple[int, ...], tuple[int, ...]]]:
        return type(self), (str(self), self.done, self.pending)

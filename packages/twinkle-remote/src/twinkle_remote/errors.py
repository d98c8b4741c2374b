"""The error tree: one root, and a remote failure that is also an instance of what was raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.failure import Failure


class TwinkleError(Exception):
    """Root of everything that twinkle raises on its own account."""


class NotInitializedError(TwinkleError):
    """A component was asked for on a group before `twinkle.initialize`, after `shutdown`, or after its `release`."""


class AlreadyInitializedError(TwinkleError):
    """`initialize` was called again with other arguments; the message shows the difference."""


class BackendError(TwinkleError, ValueError):
    """There is no backend of that name here, or it does not take an option."""


class DispatchError(TwinkleError, ValueError):
    """The arguments of a call cannot be divided over its workers as asked."""


class CollectError(TwinkleError, ValueError):
    """The results of a call do not have the shape that its collect needs."""


class PlacementError(TwinkleError):
    """A group or a component cannot be placed: unknown name, too few devices, a mesh that does not fit."""


class RemoteAttributeError(TwinkleError, AttributeError):
    """Something that is not a remote function was read from a handle."""


class RemoteCallError(TwinkleError):
    """A method raised on a worker.

    The exception that a caller sees is also an instance of the type that was raised there, so `except KeyError` and
    `except RemoteCallError` both catch it.

    Attributes:
        failures: What went wrong on each rank that failed, the first in completion order first.
    """

    failures: Sequence[Failure] = ()
    _text: str = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Nothing: a type that is also that of a user's exception is none that its base has to hear of."""

    def __str__(self) -> str:
        return self._text or super().__str__()


class WorkerDiedError(TwinkleError):
    """A worker process ended, or its node was lost, before it answered."""


class ReplyLostError(TwinkleError):
    """A worker's answer was lost on its way, although the worker lives: its call may or may not have run."""


class StoreTimeoutError(TwinkleError, TimeoutError):
    """A stored value could not be read within the time that was given."""


class CallTimeoutError(TwinkleError, TimeoutError):
    """A call passed its deadline.

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

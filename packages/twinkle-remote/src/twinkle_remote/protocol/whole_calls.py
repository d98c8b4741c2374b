"""The interface of a backend that takes calls undivided, because dispatch and collect happen elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twinkle_remote.protocol.backend import Reply

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Mapping

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Kind, Outcome


@dataclass(slots=True)
class WholeCall:
    """A call as its caller made it.

    Attributes:
        kind: Kind of the call.
        component: The component.
        target: The class ("create"), or the method's name.
        name: Class.method, for messages.
        args: Positional arguments, with marks and lazy results inside.
        kwargs: Keyword arguments, likewise.
        line: File and line of the caller.
        lazies: The lazy results that the backend found among the arguments; it fills this.
    """

    kind: Kind
    component: Component
    target: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: str
    lazies: list[Any] = field(default_factory=list)


class WholeReply(Reply, Protocol):
    """The first news of a whole call: its result, or the first failure among its ranks.

    Attributes:
        end: The reply that is done when all ranks have answered.
        answers: What each rank that has answered took and made, in outcomes without values; the caller takes them off.
    """

    end: Reply
    answers: deque[Outcome]

    def error(self) -> Exception:
        """The error of a failed call, made anew for each caller."""

    def cancel(self) -> None:
        """Cancel the call on the ranks that have not answered, if it runs on their event loops; returns at once."""

    def lateness(self, seconds: float | None) -> Exception:
        """The error that the call is not done after this time, with the stacks of its late ranks."""


@runtime_checkable
class WholeCallBackend(Protocol):
    """A backend that takes calls undivided."""

    def call_whole(self, call: WholeCall) -> WholeReply:
        """Send a call; returns when it was accepted.

        Raises:
            DispatchError: The call cannot be sent, or its arguments cannot be divided.
            TwinkleError: As the call itself would raise before it is sent to its workers.
        """

"""The interface of a backend that takes calls undivided, because dispatch and collect happen elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from twinkle_remote.protocol.backend import Reply

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Kind, Outcome
    from twinkle_remote.protocol.session_tools import SessionTool


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
        ranks: The called ranks.
        timeout: Seconds to the deadline, where the caller and not the function says so; None otherwise.
        by_rank: The answer of each rank is wanted by itself. A method then is given its arguments whole on each rank.
        lazies: The lazy results that the backend found among the arguments; it fills this.
    """

    kind: Kind
    component: Component
    target: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: str
    ranks: Sequence[int] = ()
    timeout: float | None = None
    by_rank: bool = False
    lazies: list[Any] = field(default_factory=list)


class RankReplies(Protocol):
    """The answers of the ranks of a call that is made elsewhere, each by itself.

    Attributes:
        each: Every called rank received rows of its own; None if only the outcomes show it.
        replies: One for each called rank; their outcomes' payloads are read by the backend's store.
        sent: Bytes that were sent.
    """

    each: bool | None
    replies: Sequence[Reply]
    sent: int

    def cancel(self) -> None:
        """Cancel the call on the ranks that have not answered, if it runs on their event loops; returns at once."""

    def withdraw(self) -> None:
        """Cancel the call on the ranks that have not begun it, too; returns at once."""

    def lateness(self, seconds: float | None) -> Exception:
        """The error that the call is not done after this time, with the stacks of its late ranks."""


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

    def withdraw(self) -> None:
        """Cancel the call on the ranks that have not begun it, too; returns at once."""

    def lateness(self, seconds: float | None) -> Exception:
        """The error that the call is not done after this time, with the stacks of its late ranks."""

    def by_rank(self, ranks: Sequence[int]) -> RankReplies:
        """The answers of the called ranks, each by itself."""


class RowsOfRank(NamedTuple):
    """Rows [start, stop) of what one rank made.

    Attributes:
        payload: Payload of its outcome.
        start: First row; None for the whole value.
        stop: One past the last row.
    """

    payload: object
    start: int | None = None
    stop: int | None = None


@runtime_checkable
class WholeCallBackend(Protocol):
    """A backend that takes calls undivided."""

    def call_whole(self, call: WholeCall) -> WholeReply:
        """Send a call; returns when it was accepted.

        Raises:
            DispatchError: The call cannot be sent, or its arguments cannot be divided.
            TwinkleError: As the call itself would raise before it is sent to its workers.
        """

    def built(self, component: Component, reply: Reply) -> Component:
        """A component with the ranks and the mesh that it has where it was built; takes the reply of its "create"."""

    def call_by_rank(self, call: WholeCall) -> RankReplies:
        """Send a call whose ranks' answers are wanted one by one; raises as `call_whole`."""

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SessionTool:
        """A tool beside the session; see `session_tool`."""

    def read_rows(self, pieces: Sequence[RowsOfRank], timeout: float | None) -> tuple[Any, int]:
        """The rows of several ranks, joined; the value, and the bytes that came for it.

        Raises:
            StoreTimeoutError: The time is over.
        """

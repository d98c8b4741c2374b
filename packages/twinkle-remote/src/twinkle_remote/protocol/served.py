"""The interface of a call on its way, and of a backend that takes calls undivided: its session is another process's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.session_tools import SessionTool


class SentCall(Protocol):
    """A sent call. The defaults fit a call whose ranks answer one by one.

    Attributes:
        replies: One for each called rank, ascending. Of a call whose value is made elsewhere: the value or the first
            failure, and the end of all ranks.
        of_ranks: Whether the replies are those of the called ranks.
        each: Every called rank received rows of its own; None if only the outcomes show it.
        sent: Bytes that were sent.
        submitted: Wall clock when it was sent, in seconds.
        lazies: The lazy results that the backend found among the arguments; empty where the caller knows its sources.
    """

    replies: Sequence[Reply]
    of_ranks: bool
    each: bool | None
    sent: int
    submitted: float
    lazies: Sequence[Any]

    def cancel(self, pending: Sequence[Reply]) -> None:
        """Cancel it on the ranks that have not answered, if it runs on their event loops; returns at once."""

    def withdraw(self, pending: Sequence[Reply]) -> None:
        """Cancel it also on the ranks that have not begun it; returns at once."""

    def lateness(self, seconds: float | None, done: Sequence[int], pending: Sequence[Reply]) -> Exception:
        """The error of a call that is not done after this time, with the stacks of its late ranks.

        Args:
            seconds: The time.
            done: Ranks that have answered.
            pending: Replies that have not arrived.
        """

    def error(self) -> Exception | None:
        """The error of a failed call, a new one for each caller; None if the outcomes' failures are the error."""
        return None

    def figures(self, arrived: Sequence[Outcome]) -> Sequence[Outcome]:
        """The metrics of ranks that are known and were not returned before, without values.

        It is called only if the replies are not those of the ranks.

        Args:
            arrived: Outcomes of its replies that have just arrived.
        """
        return arrived

    def by_rank(self, ranks: Sequence[int]) -> SentCall:
        """The same call, whose replies are those of the called ranks."""
        return self

    def built(self, component: Component) -> Component:
        """The component that a "create" has built, with its ranks and its mesh."""
        return component


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
class JoiningStore(Protocol):
    """A store that joins rows of several ranks without fetching them first."""

    def get_joined(self, pieces: Sequence[RowsOfRank], timeout: float | None) -> tuple[Any, int]:
        """The rows of several ranks, joined: the value, and the bytes that were received for it.

        Raises:
            StoreTimeoutError: The time is over.
        """


@runtime_checkable
class ServedBackend(Protocol):
    """A backend for a session in another process: it takes calls undivided, and that session divides them."""

    def send(self, call: Call) -> SentCall:
        """Send a call; returns when it was accepted.

        A method whose ranks are read one by one (`reads_ranks`) gets whole arguments on each rank.

        Raises:
            DispatchError: The call cannot be sent, or its arguments cannot be divided.
            TwinkleError: As the call itself would raise before it is sent to its workers.
        """

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SessionTool:
        """A tool next to the session; see `session_tool`."""

"""The interface of what a lazy result stands for: the result of one call, or rows of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.handed import HandOver


class LazySource(Protocol):
    """The source of a lazy result's value."""

    @property
    def calls(self) -> Sequence[PendingCall]:
        """The calls that make it."""

    @property
    def own_calls(self) -> Sequence[PendingCall]:
        """The calls that are cancelled with it."""

    def value(self, timeout: float | None) -> Any:
        """Wait for it and fetch it to this process; see `Lazy.result`."""

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""

    def wait(self, timeout: float | None) -> None:
        """Wait for every worker without fetching; see `Lazy.wait`."""

    def ends_within(self, seconds: float) -> bool:
        """Wait for at most `seconds` without raising; returns whether `wait` would now return at once."""

    def describe(self) -> str:
        """Class.method and where it runs."""

    def state(self) -> str:
        """A short text of its state; never waits."""

    def released(self) -> None:
        """Called when the lazy result is deleted."""

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], HandOver]:
        """The call and the rank of each outcome that a consumer reads, and how the outcomes become the value.

        Args:
            offset: Index of the first of them among the consumer's inputs.
        """

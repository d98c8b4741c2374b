"""Messages of one exchange between processes: all that they send and receive of one version, started together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Message(NamedTuple):
    """One part on its way.

    Attributes:
        peer: The other process.
        tensor: Contiguous; it is sent, or written by what arrives.
        receives: Whether it arrives here.
        tag: Its number among the messages of both processes.
    """

    peer: int
    tensor: Tensor
    receives: bool
    tag: int


class MessageGroup(Protocol):
    """A group of processes that exchange messages: `NcclGroup` and `LaunchedGroup`."""

    def run(self, messages: Sequence[Message]) -> None:
        """Send and receive; returns when all messages of this process are through.

        Raises:
            RuntimeError: A peer failed, or a message was not through in time.
        """

    def abort(self) -> None:
        """Leave the group, so that peers which wait for this process fail."""

"""The driver of a sync whose session is a server's: a client asks a `ServedSync` there to do each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.backends.support import WorkersOf
    from twinkle_remote.protocol import SessionTool


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version that was staged at the server; see `Version`."""

    number: int
    moved: int
    by_messages: bool


class ServedDriver:
    """The steps of `Driver`, at the server; the versions are those of the client's streams.

    Args:
        tool: The `ServedSync` there.
        target: The sync's target.
    """

    compiled = None

    def __init__(self, tool: SessionTool, target: object) -> None:
        self._tool, self._target = tool, target

    def stage(self, number: int, deadline: float, *, in_flight: bool, most_waiting: int = 0) -> ServedVersion:
        """Have the source stage a version."""
        return ServedVersion(number, *self._tool.call("stage", number, in_flight, most_waiting))

    def arrive(self, version: ServedVersion, deadline: float, *, in_flight: bool) -> bool:
        """Have the target's ranks get the version that was staged last."""
        found: bool = self._tool.call("arrive", in_flight)
        return found

    def publish(self, version: ServedVersion) -> None:
        """Have the target apply the version that has arrived."""
        self._tool.call("publish")

    def check_applied(self) -> None:
        """Do nothing: the server's next step says what could not be applied."""

    def leave_out(self, workers: WorkersOf) -> None:
        """Leave the target out; to this client it is one worker."""
        self._tool.call("leave_out", self._target)

    def take_back(self, workers: WorkersOf) -> None:
        """Let the target take part."""
        self._tool.call("take_back", self._target)

    def restore(self, workers: WorkersOf, deadline: float) -> bool:
        """Have the target apply the latest version again."""
        found: bool = self._tool.call("restore", self._target)
        return found

    def forget(self) -> None:
        """Plan the next version anew."""
        self._tool.call("forget")

    def close(self, deadline: float) -> None:
        """Have every rank give back what it keeps for this sync."""
        self._tool.call("give_back")

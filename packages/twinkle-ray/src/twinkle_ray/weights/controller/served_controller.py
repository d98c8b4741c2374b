"""The controller of a sync between components of a served session: the steps run there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.weights.delivery import WeightDelivery

if TYPE_CHECKING:
    from twinkle_ray.weights.planning.sync_plan import SyncPlan
    from twinkle_remote.protocol import SessionTool


@dataclass(frozen=True, slots=True)
class ServedAttempt:
    """A sync that was asked for.

    Attributes:
        version: The version that it publishes.
        detached: It has begun at the server.
        in_flight: The target's calls go on; its ranks take the version between two of them.
    """

    version: int
    detached: bool
    in_flight: bool


class ServedController:
    """Asks the server for syncs.

    Args:
        tool: The `ServedSync` there.
    """

    def __init__(self, tool: SessionTool) -> None:
        self._tool = tool

    @property
    def sync_plan(self) -> SyncPlan | None:
        """None: the plan is at the server."""
        return None

    def begin(self, version: int, deadline: float, *, detached: bool, in_flight: bool = False) -> ServedAttempt:
        """Begin a sync; one that is not detached runs as a whole in `commit`."""
        if detached:
            self._tool.call("start", version, in_flight)
        return ServedAttempt(version, detached, in_flight)

    def commit(self, attempt: ServedAttempt) -> WeightDelivery:
        """Wait until the target has the weights, or holds them in flight."""
        if attempt.detached:
            done = self._tool.call("finish")
        else:
            done = self._tool.call("hold" if attempt.in_flight else "sync", attempt.version)
        return WeightDelivery(done["version"], tuple(done["changed"]), done["sent"], done["received"], done["moved"])

    def publish(self, attempt: ServedAttempt) -> None:
        """In flight, have the target take what it holds after the calls that the server has."""
        if attempt.in_flight:
            self._tool.call("publish")

    def abandon(self, attempt: ServedAttempt) -> None:
        """Have the target forget what it holds."""
        if attempt.in_flight:
            self._tool.call("abandon")

    def can_continue_without(self) -> bool:
        """No: the server has gone on without the ranks that were lost, or could not."""
        return False

    def finalize(self, attempt: ServedAttempt) -> None:
        """Do nothing: the server has done it."""

    def forget(self) -> None:
        """Do nothing: after an error the server plans anew."""

    def waits_for(self, seconds: float) -> str:
        """Empty: the server's log names them."""
        return ""

    def close(self, deadline: float) -> None:
        """Have the server's workers give back what they keep; the next sync plans anew."""
        self._tool.call("give_back")

"""The steps of a sync, wherever they are driven from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from twinkle_ray.weights.delivery import WeightDelivery
    from twinkle_ray.weights.planning.sync_plan import SyncPlan


class SyncController(Protocol):
    """Runs syncs between two components, one at a time; its caller calls `forget` after an error."""

    @property
    def sync_plan(self) -> SyncPlan | None:
        """The plan of the latest sync; None before the first, after a failure, and where another process has it."""

    def begin(self, version: int, deadline: float, *, detached: bool, in_flight: bool = False) -> Any:
        """Begin an attempt to publish a version; in flight, each rank of the target takes it between two calls."""

    def commit(self, attempt: Any) -> WeightDelivery:
        """Wait until everything has arrived, and write it on every rank of the target, or on none."""

    def publish(self, attempt: Any) -> None:
        """In flight, have every rank of the target take what it holds; returns at once."""

    def abandon(self, attempt: Any) -> None:
        """In flight, have every rank of the target forget what it holds, instead of publishing it."""

    def can_continue_without(self) -> bool:
        """Whether a rank of the target was lost since the sync began, and the sync can go on with the others."""

    def finalize(self, attempt: Any) -> None:
        """Make a commit final on every rank."""

    def forget(self) -> None:
        """Have the next sync plan anew."""

    def waits_for(self, seconds: float) -> str:
        """The ranks that a step waits for, each with its stack, as text; empty where that is not known here.

        Args:
            seconds: How long the sync has taken.
        """

    def close(self, deadline: float) -> None:
        """Have every worker give back what it keeps for this sync."""

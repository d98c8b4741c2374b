"""A sync for which no rank of the target is there: all of them are being started again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.weights.delivery import WeightDelivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.messages import SyncCommand


@dataclass(frozen=True, slots=True)
class EmptyAttempt:
    """Publishes a version that no rank holds; those that come back are given it, or a newer one.

    Attributes:
        command: What the ranks would have got.
    """

    command: SyncCommand

    def commit(self) -> WeightDelivery:
        """Do nothing: nothing was written."""
        return WeightDelivery(self.command.version, ())

    def hold(self, superseded: Sequence[Sequence[int]]) -> WeightDelivery:
        """Do nothing: nothing is held."""
        return WeightDelivery(self.command.version, ())

    def let_go(self) -> None:
        """Do nothing: nothing is held."""

    def finalize(self) -> bool:
        """Nobody has to answer."""
        return True

    def finalize_source(self) -> None:
        """The source was not asked for anything."""

"""A function of the worker's part, with each rank's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from twinkle_ray.weights.controller.participants import RemoteParticipants
from twinkle_ray.weights.messages import RankAddress, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_ray.weights.controller.participants import Participants
    from twinkle_ray.weights.controller.steps import StepCall

SIDES: tuple[Side, Side] = ("source", "target")


class RankCalls:
    """Addresses the ranks of both sides of one sync.

    Args:
        both_sides: The participants of each side.
    """

    def __init__(self, both_sides: Mapping[Side, Participants]) -> None:
        self.both_sides = both_sides
        self._sync = uuid4().hex

    def call(self, side: Side, function: Callable[..., object], *columns: Sequence[object]) -> StepCall:
        """A function, and each rank's arguments: its address, then its row of the columns."""
        return function, list(zip(self._addresses(side), *columns, strict=True))

    def same(self, side: Side, value: object) -> list[object]:
        """A column that has the same value for every rank of a side."""
        return [value] * self.both_sides[side].size

    def _addresses(self, side: Side) -> list[RankAddress]:
        participants = self.both_sides[side]
        of_side: Sequence[int] = range(participants.size)
        if isinstance(participants, RemoteParticipants):
            of_side = participants.living
        return [RankAddress(self._sync, side, rank) for rank in of_side]

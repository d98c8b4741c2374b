"""Versions that are published, and that ranks of the target take between two calls."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from twinkle_ray.weights.controller.causes import DEATH, causes_of
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.worker import in_flight
from twinkle_remote.backends.support import running
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.controller.participants import RemoteParticipants
    from twinkle_ray.weights.controller.rank_calls import RankCalls
    from twinkle_ray.weights.messages import SyncCommand
    from twinkle_remote.backends.support import PendingCall


class PublishedVersions:
    """The versions that some rank of the target has not taken yet.

    Args:
        target: The target.
    """

    def __init__(self, target: RemoteParticipants) -> None:
        self._target = target
        self._takes: list[tuple[SyncCommand, PendingCall]] = []

    def publish(self, calls: RankCalls, command: SyncCommand) -> None:
        """Have every rank take what it holds, after the calls that it has; returns at once."""
        take = calls.call("target", in_flight.take, calls.same("target", command))
        made = self._target.call(*take, concurrent=False, prefetched=True)  # their failures are reported by `check`
        self._takes += [(command, call) for call in made]

    def check(self) -> None:
        """Forget the versions that all have taken.

        Raises:
            WeightSyncError: A rank could not take one.
        """
        over = [take for take in self._takes if take[1].done()]
        self._takes = [take for take in self._takes if take not in over]
        for command, call in over:
            try:
                call.wait(0.0)
            except TwinkleError as error:
                raised = [cause for cause in causes_of(error) if cause.level != DEATH]
                if raised:
                    text = f"version {command.version} of the weights was published, and a rank could not take it"
                    raise WeightSyncError(f"{text}: {raised[0].text}") from error

    def superseded(self) -> list[tuple[int, ...]]:
        """For each rank, the attempts that it need not write: the next version follows, without a call between.

        All ranks of a replica run each call with the same version, because all of them have their calls in one order.
        """
        attempts = {id(call): command.attempt for command, call in self._takes}
        lines: dict[tuple[str, int], list[int | None]] = {}
        for call in running().in_flight.calls():
            if not call.spec.concurrent:
                for reply in call.pending():
                    lines.setdefault((call.group_name, reply.rank), []).append(attempts.get(id(call)))
        own = [self._target.ranks[index] for index in self._target.living]
        return [_followed(lines.get((component.group, rank), [])) for component, rank in own]


def _followed(line: Sequence[int | None]) -> tuple[int, ...]:
    """The attempts in a rank's line of calls that another one follows directly."""
    return tuple(first for first, second in pairwise(line) if first is not None and second is not None)

"""The worker's part of a sync in flight: a target rank holds what has arrived, and takes it between two calls.

`hold` and `let_go` run while the component's calls do, and `take` in turn with them: no call sees half of a version.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.weights.worker.endpoint import rank_at, read_weights
from twinkle_remote.backends.support import between_awaits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.messages import RankAddress, SyncCommand
    from twinkle_ray.weights.planning.box_plan import Digests
    from twinkle_ray.weights.worker.endpoint import HasWeights

_log = logging.getLogger("twinkle.ray")


@dataclass(frozen=True, slots=True)
class HoldReport:
    """The result of `hold`.

    Attributes:
        changed: The entries whose values differ from those in the target's tensors now, as a set of bits.
        digests: Of the held blocks; None where nothing is compared.
    """

    changed: int
    digests: Digests | None


def hold(
    instance: HasWeights, address: RankAddress, command: SyncCommand, superseded: Sequence[int], compare: bool
) -> HoldReport:
    """Copy what has arrived, so that the next transfer can begin before it is written.

    Args:
        instance: The component.
        address: Of this rank.
        command: The sync.
        superseded: Attempts that need not be written: a later one follows, and no call is between them.
        compare: Make digests of what is held.
    """
    process_state, rank_state = rank_at(address)
    rank_plan = rank_state.running(command)
    with process_state.watching(address, command.phase("hold")), rank_state.held.lock:
        rank_state.held.drop(superseded)
        rank_state.fetch(rank_plan)
        version = rank_state.held.hold(command.attempt, rank_plan, rank_state.arrivals(rank_plan))
        rank_state.synchronize()
        changed = rank_state.held_commit(version).differing() | rank_state.unsettled_entries(rank_plan)
        digests = rank_state.held_digests(version) if compare else None
    rank_state.clear()
    return HoldReport(changed, digests)


def take(instance: HasWeights, address: RankAddress, command: SyncCommand) -> None:
    """Write a held version into the component's weights, and call its `on_weights`; nothing if it was superseded."""

    def write() -> None:
        rank_state = rank_at(address)[1]
        with rank_state.held.lock:
            version = rank_state.held.get(command.attempt)
            if version is None:
                return
            read_weights(instance, rank_state, "target")
            rank_state.check_shards(version.rank_plan)
            rank_state.apply_held(version)
            rank_state.synchronize()
            rank_state.held.drop([command.attempt])
        hook = getattr(instance, "on_weights", None)
        if hook is not None:
            hook(command.version)

    try:
        between_awaits(write)
    except Exception:
        _log.exception("version %d of the weights was not taken on %s", command.version, address)
        raise


def let_go(instance: HasWeights, address: RankAddress, command: SyncCommand) -> None:
    """Forget what is held of a sync that failed on another rank."""
    rank_state = rank_at(address)[1]
    with rank_state.held.lock:
        rank_state.held.drop([command.attempt])

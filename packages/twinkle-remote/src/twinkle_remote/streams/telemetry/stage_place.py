"""Where a stage runs: its workers, and how many calls of it each runs at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_remote.protocol.marks import concurrency_of
from twinkle_remote.streams.stages import RemoteStage, pools_of, serial_pools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.stages import Stage


@dataclass(frozen=True, slots=True)
class StagePlace:
    """The place of one stage.

    Attributes:
        name: Class.method, with a number if the same function is an earlier stage too.
        group: Its group; "driver" for a function of the driver.
        pool: Index of the workers that it shares with other stages.
        data_ranks: Number of its data ranks.
        width: Calls that one data rank runs at the same time.
    """

    name: str
    group: str
    pool: int
    data_ranks: int
    width: int


def places_of(stages: Sequence[Stage], at_once: int) -> list[StagePlace]:
    """The places of stages.

    Args:
        stages: The stages of a stream.
        at_once: Calls that each data rank is given at a time.
    """
    _, of_stage = pools_of(stages)
    serial = serial_pools(stages, of_stage)
    names: dict[str, int] = {}
    places = []
    for stage, pool in zip(stages, of_stage, strict=True):
        names[stage.name] = number = names.get(stage.name, 0) + 1
        name = stage.name if number == 1 else f"{stage.name} #{number}"
        group = stage.component.group if isinstance(stage, RemoteStage) else "driver"
        width = 1 if pool in serial else min(at_once, _most(stage))
        places.append(StagePlace(name, group, pool, stage.data_ranks, width))
    return places


def _most(stage: Stage) -> int:
    """Calls that a data rank can run at the same time."""
    if not isinstance(stage, RemoteStage):
        return 1 << 30  # threads of the driver
    return concurrency_of(type(getattr(stage.function, "__self__", None))) if stage.spec.on_loop else 1

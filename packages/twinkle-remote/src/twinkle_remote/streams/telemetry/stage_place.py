"""Where a stage runs: its workers, what they take at a time, and how many calls of it each runs at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_remote.streams.stages import RemoteStage, intakes_of, pools_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.streams.schedule.intake import Intake
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
        intake: What it takes at a time.
    """

    name: str
    group: str
    pool: int
    data_ranks: int
    width: int
    intake: Intake


def stage_workers(stages: Sequence[Stage], at_once: int | None) -> list[StagePlace]:
    """The places of stages.

    Args:
        stages: The stages of a stream.
        at_once: Calls that each data rank is given at a time; None for what its worker runs.
    """
    _, of_stage = pools_of(stages)
    names: dict[str, int] = {}
    places = []
    for stage, pool, intake in zip(stages, of_stage, intakes_of(stages, of_stage, at_once), strict=True):
        names[stage.name] = number = names.get(stage.name, 0) + 1
        name = stage.name if number == 1 else f"{stage.name} #{number}"
        group = stage.component.group if isinstance(stage, RemoteStage) else "driver"
        one_by_one = isinstance(stage, RemoteStage) and not stage.spec.on_loop
        width = 1 if one_by_one else intake.calls
        places.append(StagePlace(name, group, pool, stage.data_ranks, width, intake))
    return places

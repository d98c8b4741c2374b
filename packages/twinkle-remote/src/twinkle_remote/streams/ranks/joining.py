"""Workers that join the stages of a stream, or leave them, while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.protocol.component import same_component
from twinkle_remote.streams.stages import RemoteStage, check_chunks, stage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from twinkle_remote.streams.stages import Stage


def joining_stages(
    stages: Sequence[Stage], of_stage: Sequence[int], functions: Sequence[Callable[[Any], Any]]
) -> tuple[int, dict[int, RemoteStage]]:
    """The stages that the functions of another component join.

    Args:
        stages: The stages of the stream.
        of_stage: The pool of each.
        functions: Bound remote functions of the other component, one for each stage of one pool.

    Returns:
        The pool, and by stage the stage that the other component would be alone.

    Raises:
        ValueError: They are not the functions of all stages that share workers, or the component works already.
    """
    joined: dict[int, RemoteStage] = {}
    for function in functions:
        other = stage_of(function)
        check_chunks(other)
        found = [
            index
            for index, stage in enumerate(stages)
            if isinstance(stage, RemoteStage) and isinstance(other, RemoteStage) and stage.name == other.name
        ]
        if not isinstance(other, RemoteStage) or not found:
            names = ", ".join(stage.name for stage in stages if isinstance(stage, RemoteStage)) or "none"
            raise ValueError(
                f"{other.name} is no stage of the stream: remote functions that others can join are {names}"
            )
        for index in found:
            stage = stages[index]
            assert isinstance(stage, RemoteStage)
            if any(same_component(own, other.component) for own in stage.components):
                raise ValueError(f"{other.name} on group {other.component.group!r} is in the stream already")
            if not other.fixed.are_those_of(stage.fixed):
                raise ValueError(
                    f"{other.name} joins with other arguments than the stage has: use functools.partial of it with the "
                    f"same, args={stage.fixed.args!r:.80} and {dict(stage.fixed.kwargs)!r:.80}"
                )
            joined[index] = other
    pools = {of_stage[index] for index in joined}
    together = [index for index, pool in enumerate(of_stage) if pool in pools]
    if len(pools) != 1 or sorted(joined) != together or len({tuple(one.peers) for one in joined.values()}) != 1:
        names = ", ".join(stages[index].name for index in together)
        raise ValueError(f"stages that share workers are joined together, by one component each on one group: {names}")
    return pools.pop(), joined


def drained_ranks(
    stages: Sequence[Stage], of_stage: Sequence[int], function: Callable[[Any], Any]
) -> tuple[int, Sequence[int]]:
    """The pool and the data ranks of a component that leaves.

    Raises:
        ValueError: It does not work for the stream.
    """
    leaving = stage_of(function)
    for stage, pool in zip(stages, of_stage, strict=True):
        if isinstance(stage, RemoteStage) and isinstance(leaving, RemoteStage) and stage.name == leaving.name:
            ranks = stage.data_ranks_of(leaving.component)
            if ranks:
                return pool, ranks
    raise ValueError(f"{leaving.name} does not work for the stream")

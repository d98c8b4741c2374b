"""Messages between the caller and the agents of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ray

    from twinkle_ray.objects.wire import Wire


class NodeTasks(NamedTuple):
    """The tasks of one call for the ranks of one node.

    Attributes:
        node: Index of the node.
        ranks: The called ranks there.
        wires: The distinct tasks.
        of_rank: For each rank the index of its task; empty if there is one task.
        inputs: For each distinct task, refs of what it waits for; empty without lazy arguments.
    """

    node: int
    ranks: tuple[int, ...]
    wires: tuple[Wire | ray.ObjectRef[Any], ...]
    of_rank: tuple[int, ...] = ()
    inputs: tuple[tuple[ray.ObjectRef[Any], ...], ...] = ()


class NodeMessage(NamedTuple):
    """One call, for a node and the nodes below it.

    Attributes:
        key: Id of the call.
        group: Name of the called group.
        on_loop: The tasks are started on event loops.
        nodes: The tasks of each node.
    """

    key: str
    group: str
    on_loop: bool
    nodes: tuple[NodeTasks, ...]


class LostReplies(NamedTuple):
    """Replies that cannot arrive.

    Attributes:
        ranks: Their ranks.
        error: The error of Ray.
        agent: Index of the node whose agent was to answer; None if it was the rank itself.
    """

    ranks: tuple[int, ...]
    error: Exception
    agent: int | None = None


class NodeOutcomes(NamedTuple):
    """The outcomes that have arrived at an agent since it reported the last ones.

    Attributes:
        ranks: The ranks that they are of.
        failed: One of them is a failure.
        outcomes: Outcomes without refs, as `outcomes_to_wire` makes them.
        stored: The wire forms of outcomes with refs, which Ray has to see.
        lost: The replies that cannot arrive.
        rest: The next outcomes of the agent; None if these are the last ones.
    """

    ranks: tuple[int, ...]
    failed: bool
    outcomes: tuple[bytes, ...]
    stored: tuple[tuple[Any, ...], ...]
    lost: tuple[LostReplies, ...]
    rest: ray.ObjectRef[NodeOutcomes] | None = None


def loop_key(call: str, rank: int) -> str:
    """Id of the task of a rank on its event loop.

    Args:
        call: Id of the call.
        rank: The rank.
    """
    return f"{call} {rank}"

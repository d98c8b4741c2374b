"""One rank's part of a plan: it is sent once, and the rank keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.messages import Route
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.planning.manifest import TensorMatch
    from twinkle_ray.weights.planning.schedule import Hop
    from twinkle_ray.weights.planning.transfer_plan import Move


@dataclass(frozen=True, slots=True)
class RankPlan:
    """A rank's part of a plan.

    Attributes:
        digest: Of the whole plan with its routes.
        specs_digest: Of the rank's specs that the plan was made for.
        entries: The plan's entries.
        buckets: Those that this rank sends or receives, by index.
        routes: How each of them travels.
        rounds: The hops of this rank's process, for each round that has any.
        process: Rank of its process in the link's group.
        lead: Whether this rank runs the hops of its process; one rank of each process does.
        device: Where buckets of links are staged: "cpu", or the rank's own device.
        replicas: Blocks that this source rank and others hold.
    """

    digest: str
    specs_digest: str
    entries: tuple[TensorMatch, ...]
    buckets: Mapping[int, Bucket]
    routes: Mapping[int, Route]
    rounds: tuple[tuple[Hop, ...], ...]
    process: int
    lead: bool
    device: Literal["cpu", "own"]
    replicas: tuple[Move, ...] = ()

"""Collectives with one interface: over the ranks, nodes and meshes of a launched program, or in one process."""

from twinkle_ray.collective.base import Collective
from twinkle_ray.collective.errors import CollectiveError, CollectiveMismatchError, CollectiveTimeoutError
from twinkle_ray.collective.mesh import MeshCollective
from twinkle_ray.collective.process_groups import Meshes
from twinkle_ray.collective.single import SingleProcessCollective

__all__ = [
    "Collective",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "MeshCollective",
    "Meshes",
    "SingleProcessCollective",
]

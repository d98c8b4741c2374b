"""Collectives among ranks: one interface, over process groups of a launched program, and in one process."""

from twinkle_ray.collective.base import Collective
from twinkle_ray.collective.mesh import MeshCollective, Meshes

__all__ = ["Collective", "MeshCollective", "Meshes"]

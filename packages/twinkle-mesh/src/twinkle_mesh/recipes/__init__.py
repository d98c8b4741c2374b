"""Meshes as other projects build them."""

from .automodel import DDPConfig, FSDP2Config, MegatronFSDPConfig, create_device_mesh
from .optimus import OptimusMeshes, optimus_meshes
from .torchtitan import ParallelMeshes, torchtitan_meshes

__all__ = [
    "DDPConfig",
    "FSDP2Config",
    "MegatronFSDPConfig",
    "OptimusMeshes",
    "ParallelMeshes",
    "create_device_mesh",
    "optimus_meshes",
    "torchtitan_meshes",
]

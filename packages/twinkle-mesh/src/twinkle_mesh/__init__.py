"""Device groups and device meshes: topology as pure-Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh.lazy_names import load_lazily as load_lazily

if TYPE_CHECKING:
    from twinkle_mesh.group import DeviceGroup as DeviceGroup
    from twinkle_mesh.mesh import DeviceMesh as DeviceMesh
    from twinkle_mesh.rank import ask_for_rank as ask_for_rank
    from twinkle_mesh.rank import current_rank as current_rank
    from twinkle_mesh.rank import launched as launched
    from twinkle_mesh.rank import use_rank as use_rank
    from twinkle_mesh.recipes import DDPConfig as DDPConfig
    from twinkle_mesh.recipes import FSDP2Config as FSDP2Config
    from twinkle_mesh.recipes import MegatronFSDPConfig as MegatronFSDPConfig
    from twinkle_mesh.recipes import create_device_mesh as create_device_mesh
    from twinkle_mesh.sizes import balanced_slice as balanced_slice
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"

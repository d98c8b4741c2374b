"""Device groups and device meshes: topology as pure-Python values."""

from __future__ import annotations

from twinkle_mesh.lazy_names import load_lazily as load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_mesh.balance import Slices as Slices
    from twinkle_mesh.balance import balanced_rows as balanced_rows
    from twinkle_mesh.balance import balanced_slice as balanced_slice
    from twinkle_mesh.context import ask_for_rank as ask_for_rank
    from twinkle_mesh.context import current_rank as current_rank
    from twinkle_mesh.context import use_rank as use_rank
    from twinkle_mesh.group import DeviceGroup as DeviceGroup
    from twinkle_mesh.launch import LaunchedProcess as LaunchedProcess
    from twinkle_mesh.launch import launched as launched
    from twinkle_mesh.layout.ranks import Groups as Groups
    from twinkle_mesh.layout.ranks import Ranks as Ranks
    from twinkle_mesh.mesh import DeviceMesh as DeviceMesh
    from twinkle_mesh.nodes import Nodes as Nodes
    from twinkle_mesh.recipes import DDPConfig as DDPConfig
    from twinkle_mesh.recipes import FSDP2Config as FSDP2Config
    from twinkle_mesh.recipes import MegatronFSDPConfig as MegatronFSDPConfig
    from twinkle_mesh.recipes import create_device_mesh as create_device_mesh
    from twinkle_mesh.show.explain import DimReport as DimReport
    from twinkle_mesh.show.explain import MeshExplanation as MeshExplanation
    from twinkle_mesh.show.picture import Picture as Picture
    from twinkle_mesh.transfer import Piece as Piece
    from twinkle_mesh.transfer import plan_transfer as plan_transfer
    from twinkle_mesh.unknown_names import check_known_names as check_known_names
    from twinkle_mesh.unknown_names import instead_of as instead_of
    from twinkle_mesh.unknown_names import with_known_names as with_known_names
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"

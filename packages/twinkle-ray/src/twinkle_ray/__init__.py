"""The Ray backend of twinkle: placement, data plane, collectives and weight sync."""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_ray.backend import RayBackend as RayBackend
    from twinkle_ray.backend import restart as restart
    from twinkle_ray.collective import Collective as Collective
    from twinkle_ray.collective import MeshCollective as MeshCollective
    from twinkle_ray.collective import Meshes as Meshes
    from twinkle_ray.weights import ManifestError as ManifestError
    from twinkle_ray.weights import Shard as Shard
    from twinkle_ray.weights import SyncHandle as SyncHandle
    from twinkle_ray.weights import WeightDelivery as WeightDelivery
    from twinkle_ray.weights import WeightSync as WeightSync
    from twinkle_ray.weights import WeightSyncError as WeightSyncError
    from twinkle_ray.weights import WeightSyncTimeoutError as WeightSyncTimeoutError
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"

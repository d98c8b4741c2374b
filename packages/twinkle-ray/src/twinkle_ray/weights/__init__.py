"""Weight sync: parameters from one component's layout to another's, worker to worker."""

from twinkle_ray.weights.errors import ManifestError, WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.shards import Shard
from twinkle_ray.weights.sync import SyncHandle, WeightDelivery, WeightSync

__all__ = [
    "ManifestError",
    "Shard",
    "SyncHandle",
    "WeightDelivery",
    "WeightSync",
    "WeightSyncError",
    "WeightSyncTimeoutError",
]

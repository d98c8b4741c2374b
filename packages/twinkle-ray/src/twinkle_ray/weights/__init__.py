"""Weight sync: parameters from one component's layout to another's, worker to worker."""

from twinkle_ray.weights.delivery import WeightDelivery
from twinkle_ray.weights.errors import ManifestError, WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.replacement.replaceable import ReplaceableWeights
from twinkle_ray.weights.replacement.staged import StagedWeights
from twinkle_ray.weights.shards.shard import Shard
from twinkle_ray.weights.sync import SyncHandle, WeightSync

__all__ = [
    "ManifestError",
    "ReplaceableWeights",
    "Shard",
    "StagedWeights",
    "SyncHandle",
    "WeightDelivery",
    "WeightSync",
    "WeightSyncError",
    "WeightSyncTimeoutError",
]

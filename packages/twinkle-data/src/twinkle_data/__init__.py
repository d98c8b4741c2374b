"""A data loader that knows the device mesh: exact, resumable, elastic."""

from twinkle_data.batch import Batch, BatchInfo
from twinkle_data.errors import BadSampleError, NotResumableError, RanksDifferError, StateMismatchError
from twinkle_data.loader import DataLoader
from twinkle_data.reading import sample_seed
from twinkle_data.sampler import DeviceMeshSampler
from twinkle_data.sources import Mixture

__version__ = "0.1.0"

__all__ = [
    "BadSampleError",
    "Batch",
    "BatchInfo",
    "DataLoader",
    "DeviceMeshSampler",
    "Mixture",
    "NotResumableError",
    "RanksDifferError",
    "StateMismatchError",
    "sample_seed",
]

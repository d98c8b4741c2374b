"""A data loader that knows the device mesh: exact, resumable, elastic."""

from twinkle_data.batch import Batch, BatchInfo
from twinkle_data.cursor import merge_states
from twinkle_data.errors import (
    BadSampleError,
    LoaderProcessError,
    NotResumableError,
    RanksDifferError,
    StateMismatchError,
)
from twinkle_data.loader import DataLoader
from twinkle_data.loading.loader_processes.processes import ProcessOptions
from twinkle_data.order.packing import Packing
from twinkle_data.order.permutation import Permutation
from twinkle_data.order.plot import order_table, plot_order
from twinkle_data.reading.randomness import sample_seed
from twinkle_data.sampler import DeviceMeshSampler
from twinkle_data.sources.mixing import Mixture
from twinkle_data.sources.shards import Shards

__version__ = "0.1.0"

__all__ = [
    "BadSampleError",
    "Batch",
    "BatchInfo",
    "DataLoader",
    "DeviceMeshSampler",
    "LoaderProcessError",
    "Mixture",
    "NotResumableError",
    "Packing",
    "Permutation",
    "ProcessOptions",
    "RanksDifferError",
    "Shards",
    "StateMismatchError",
    "merge_states",
    "order_table",
    "plot_order",
    "sample_seed",
]

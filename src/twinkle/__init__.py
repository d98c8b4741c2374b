"""Write a distributed post-training loop as plain Python over meshes of workers.

The names of all packages that a loop needs. Each name is loaded from its package on first use, so `import twinkle`
loads neither torch, ray nor numpy.
"""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_data import BadSampleError as BadSampleError
    from twinkle_data import Batch as Batch
    from twinkle_data import DataLoader as DataLoader
    from twinkle_data import DeviceMeshSampler as DeviceMeshSampler
    from twinkle_data import Mixture as Mixture
    from twinkle_data import sample_seed as sample_seed
    from twinkle_mesh import DeviceGroup as DeviceGroup
    from twinkle_mesh import DeviceMesh as DeviceMesh
    from twinkle_ray import MeshCollective as MeshCollective
    from twinkle_ray import Shard as Shard
    from twinkle_ray import WeightSync as WeightSync
    from twinkle_ray import WeightSyncError as WeightSyncError
    from twinkle_ray import restart as restart
    from twinkle_remote import CallTimeoutError as CallTimeoutError
    from twinkle_remote import CollectError as CollectError
    from twinkle_remote import DispatchError as DispatchError
    from twinkle_remote import Lazy as Lazy
    from twinkle_remote import NotInitializedError as NotInitializedError
    from twinkle_remote import PlacementError as PlacementError
    from twinkle_remote import RemoteCallError as RemoteCallError
    from twinkle_remote import Replicate as Replicate
    from twinkle_remote import SessionLostError as SessionLostError
    from twinkle_remote import Stream as Stream
    from twinkle_remote import TwinkleError as TwinkleError
    from twinkle_remote import WorkerContext as WorkerContext
    from twinkle_remote import WorkerDiedError as WorkerDiedError
    from twinkle_remote import concat as concat
    from twinkle_remote import current_worker as current_worker
    from twinkle_remote import explain as explain
    from twinkle_remote import get as get
    from twinkle_remote import initialize as initialize
    from twinkle_remote import join as join
    from twinkle_remote import map as map  # noqa: A004  named like Python's
    from twinkle_remote import minibatches as minibatches
    from twinkle_remote import on as on
    from twinkle_remote import register_rows as register_rows
    from twinkle_remote import register_type as register_type
    from twinkle_remote import release as release
    from twinkle_remote import remote_class as remote_class
    from twinkle_remote import remote_function as remote_function
    from twinkle_remote import run_on_workers as run_on_workers
    from twinkle_remote import select as select
    from twinkle_remote import serve as serve
    from twinkle_remote import session as session
    from twinkle_remote import shutdown as shutdown
    from twinkle_remote import stats as stats
    from twinkle_remote import stream as stream
    from twinkle_remote import submit as submit
    from twinkle_remote import take as take
    from twinkle_remote import write_timeline as write_timeline
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"

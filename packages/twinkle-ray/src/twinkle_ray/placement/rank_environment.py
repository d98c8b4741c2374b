"""The environment of a rank: variables of torch.distributed, devices, threads, paths of the user's modules."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from typing import TYPE_CHECKING

from twinkle_ray.ray_internals import visibility_variable
from twinkle_ray.workers.rank_actor import THREADS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.workers.rank_actor import WorkerLocation

_HIDDEN = ("GPU", "NPU")
DEVICE_TYPE = "TWINKLE_DEVICE_TYPE"
"""The variable with the device type of a worker's group, such as GPU."""
NODE_RANK = "TWINKLE_LOCAL_RANK"
"""The variable with the rank of a worker among the workers of its group and node."""


def rendezvous(locations: Sequence[WorkerLocation], port: int) -> Mapping[str, str]:
    """The variables by which torch.distributed finds its peers; the same for all ranks."""
    return {"WORLD_SIZE": str(len(locations)), "MASTER_ADDR": locations[0].address, "MASTER_PORT": str(port)}


def local_ranks(locations: Sequence[WorkerLocation], device_type: str) -> Sequence[Mapping[str, str]]:
    """For each rank the variables of its node: LOCAL_RANK, LOCAL_WORLD_SIZE and NODE_RANK, its number on the node.

    Libraries take LOCAL_RANK for the index of the process's device (`torch.cuda.set_device`, `init_device_mesh`). A
    worker sees its own devices alone, and the first of them is number 0: there LOCAL_RANK is 0 on every rank. Without
    devices it is the number on the node.

    Args:
        locations: Of the ranks.
        device_type: Of their group.
    """
    per_node = Counter(location.node_id for location in locations)
    has_own_devices = visibility_variable(device_type) is not None
    seen: Counter[str] = Counter()
    out = []
    for location in locations:
        number = str(seen[location.node_id])
        local = {"LOCAL_RANK": "0" if has_own_devices else number, NODE_RANK: number}
        out.append({**local, "LOCAL_WORLD_SIZE": str(per_node[location.node_id])})
        seen[location.node_id] += 1
    return out


def import_paths() -> list[str]:
    """The directories of the user's own modules: the driver's `sys.path` without the installed packages."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths_here = dict.fromkeys(os.path.abspath(path or os.getcwd()) for path in (*sys.path, ""))
    return [path for path in paths_here if os.path.isdir(path) and not (path + os.sep).startswith(installed)]


def threads(location: WorkerLocation, device_type: str, devices: int, node_devices: int) -> Mapping[str, str]:
    """OMP_NUM_THREADS of a worker with devices: its share of its node's cores, by devices.

    Ray gives each worker as many threads as it has CPUs reserved, which is one: enough for a worker of a CPU group, of
    which there is one for each core. Who has set the variable keeps it.

    Args:
        location: Of the worker.
        device_type: Of its group.
        devices: Number of its devices.
        node_devices: Number of devices of this type on its node.
    """
    if visibility_variable(device_type) is None or location.threads:
        return {}
    return {THREADS: str(max(1, location.cores * devices // max(node_devices, devices)))}


def hidden_devices(device_type: str) -> Mapping[str, str]:
    """The variables that hide devices of other types from a worker."""
    own = visibility_variable(device_type)
    others = {variable for kind in _HIDDEN if (variable := visibility_variable(kind)) not in (None, own)}
    return dict.fromkeys(others, "")

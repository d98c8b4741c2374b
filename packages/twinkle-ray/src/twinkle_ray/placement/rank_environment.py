"""The environment of a rank: variables of torch.distributed, hidden devices, paths of the user's modules."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from typing import TYPE_CHECKING

from twinkle_ray.workers.rank_actor import visibility_variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.workers.rank_actor import WorkerLocation

_HIDDEN = ("GPU", "NPU")


def rendezvous(locations: Sequence[WorkerLocation], port: int) -> Mapping[str, str]:
    """The variables by which torch.distributed finds its peers; the same for all ranks."""
    return {"WORLD_SIZE": str(len(locations)), "MASTER_ADDR": locations[0].address, "MASTER_PORT": str(port)}


def local_ranks(locations: Sequence[WorkerLocation]) -> Sequence[Mapping[str, str]]:
    """For each rank, its rank among those of its node, and their number."""
    per_node = Counter(location.node_id for location in locations)
    seen: Counter[str] = Counter()
    out = []
    for location in locations:
        out.append({"LOCAL_RANK": str(seen[location.node_id]), "LOCAL_WORLD_SIZE": str(per_node[location.node_id])})
        seen[location.node_id] += 1
    return out


def import_paths() -> list[str]:
    """The directories of the user's own modules: the driver's `sys.path` without the installed packages."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths_here = dict.fromkeys(os.path.abspath(path or os.getcwd()) for path in (*sys.path, ""))
    return [path for path in paths_here if os.path.isdir(path) and not (path + os.sep).startswith(installed)]


def hidden_devices(device_type: str) -> Mapping[str, str]:
    """The variables that hide devices of other types from a worker."""
    own = visibility_variable(device_type)
    others = {variable for kind in _HIDDEN if (variable := visibility_variable(kind)) not in (None, own)}
    return dict.fromkeys(others, "")

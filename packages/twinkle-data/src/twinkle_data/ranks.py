"""Whose rows a process reads, and whether all ranks read the same dataset.

A worker of a component, and a process of a launcher, takes its data rank's share of each batch; the driver takes global
batches, which calls divide. This is asked where a loader is made, and must be the same where it is read.
"""

from __future__ import annotations

import json
import warnings
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from twinkle_data.errors import RanksDifferError
from twinkle_mesh import DeviceMesh
from twinkle_remote import current_place
from twinkle_remote.backends.support import active

if TYPE_CHECKING:
    from collections.abc import Mapping

_TELL = timedelta(seconds=60)  # before a wait for other ranks is reported
_loaders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # compared so far, by store of a process group


class RankShare(NamedTuple):
    """The share of each global batch that the running code takes."""

    world: int = 1  # number of data ranks
    rank: int | None = None  # None takes global batches
    compared: bool = False  # the ranks are processes of a launcher, and can be compared through their process group


def share_here(mesh: DeviceMesh | None, *, replicate: bool = False) -> RankShare:
    """The share that the running code takes; without a mesh the component's, and all processes under a launcher.

    Raises:
        TypeError: It is another kind of mesh.
        ValueError: The mesh has another size than the group or the launcher, or rows would go to no rank.
    """
    if mesh is not None and not isinstance(mesh, DeviceMesh):
        raise TypeError(f"device_mesh= takes a DeviceMesh, got a {type(mesh).__name__}; see DeviceMesh.from_torch")
    if replicate:
        return RankShare()
    place = current_place()
    if place.worker is not None:
        return _in_worker(mesh, place.worker)
    session = active()
    world = place.world_size
    if place.by == "use_rank":
        return RankShare() if mesh is None else RankShare(mesh.data_world_size, mesh.data_rank(place.rank))
    if world == 1 or (session is not None and (mesh is None or session.mode != "local")):
        return RankShare(1 if mesh is None else mesh.data_world_size)  # one process, or the driver of a session
    if world is None and mesh is None:
        raise ValueError(
            f"{place.by} says that this is rank {place.rank}, and not of how many processes: set WORLD_SIZE (torchrun "
            "does), pass device_mesh=, or replicate=True for all rows on each rank"
        )
    mesh = mesh or DeviceMesh.from_sizes(dp_size=world or 1)
    if world is not None:
        _check_size(mesh, world, f"{place.by} processes")
    return RankShare(mesh.data_world_size, mesh.data_rank(place.rank), compared=mesh.data_world_size > 1)


def _in_worker(mesh: DeviceMesh | None, worker: Any) -> RankShare:
    if mesh is None and (worker.alone or worker.world_size == 1):
        return RankShare()
    mesh = mesh or worker.mesh or DeviceMesh.from_sizes(dp_size=worker.world_size)
    if worker.world_size == 1:
        return RankShare(mesh.data_world_size)  # one process is the whole component, as in "local"
    _check_size(mesh, worker.world_size, f"the group {worker.group!r} has {worker.world_size} workers")
    if worker.alone and mesh.data_world_size > 1:
        raise ValueError(
            f'the first worker of group {worker.group!r} runs this alone (execute="first"): the rows of the '
            f"{mesh.data_world_size - 1} other data ranks would go to none. Leave device_mesh= out, or read the loader "
            "in a method that all workers run"
        )
    return RankShare(mesh.data_world_size, mesh.data_rank(worker.rank))


def _check_size(mesh: DeviceMesh, ranks: int, who: str) -> None:
    if mesh.world_size != ranks:
        raise ValueError(
            f"device_mesh has {mesh.world_size} ranks, and {who}: some rows would go to none of them, or to several. "
            f"Use a mesh of {ranks} ranks, or leave device_mesh= out"
        )


def check_same(facts: Mapping[str, Any], other: Mapping[str, Any], ranks: tuple[int, int]) -> None:
    """Compare what two data ranks read; a `RanksDifferError` shows what differs."""
    names = [name for name in facts if facts[name] != other.get(name)]
    if names:
        differ = "; ".join(f"{name}: {facts[name]!r:.60} and {other.get(name)!r:.60}" for name in names)
        raise RanksDifferError(
            f"data ranks {ranks[0]} and {ranks[1]} have different datasets or positions ({differ}): rows would come "
            "twice or never. Build the same on each rank: sort what is listed (sorted(os.listdir(folder))), draw by a "
            'seed, divide nothing by rank; where the rows are the same all the same, give fingerprint="..."'
        )


def compare_launched(facts: Mapping[str, Any], share: RankShare) -> None:
    """Compare a loader with those of all other data ranks, through the store of the process group.

    The n-th loader of one process is compared with the n-th of the others. It waits until each data rank has read the
    first step of its loader, at most for the timeout of the process group. Without such a group it does nothing.

    Raises:
        RanksDifferError: A data rank reads something else, or has not begun within the timeout.
    """
    distributed = import_module("torch.distributed")
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_backend() == "fake":
        return
    store = import_module("torch.distributed.distributed_c10d")._get_default_store()
    number = _loaders[store] = _loaders.get(store, 0) + 1
    keys = [f"twinkle/data/{number}/{rank}" for rank in range(share.world)]
    first = store.compare_set(keys[share.rank or 0], "", json.dumps(facts))  # of peers the first one speaks
    check_same(json.loads(first), facts, (share.rank or 0, share.rank or 0))
    _wait(store, keys)
    others = [json.loads(text) for text in store.multi_get(keys)]
    for rank, other in enumerate(others):
        check_same(others[0], other, (0, rank))


def _wait(store: Any, keys: list[str]) -> None:
    """Wait until all keys are set, and say so once when it takes long."""
    limit, missing = store.timeout, ""
    for seconds in (min(_TELL, limit), max(limit - _TELL, timedelta(seconds=0.1))):
        try:
            store.wait(keys, seconds)
            return
        except RuntimeError:  # torch's DistStoreError: not yet
            missing = ", ".join(key.rpartition("/")[2] for key in keys if not store.check([key]))
            text = f"a DataLoader waits for the first step of data ranks {missing}"
            warnings.warn(f"{text}; what one process reads alone needs replicate=True", RuntimeWarning, stacklevel=2)
    raise RanksDifferError(
        f"data ranks {missing} have not read the first step of this loader within {limit}, the timeout of "
        "the process group: their rows would go to nobody. Read it on each data rank, in one order of loaders, or give "
        "replicate=True to a loader that one process reads alone"
    )

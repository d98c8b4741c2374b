"""The engine on a worker: plain functions of a component, called one after the other by the controller.

Describe, prepare, transfer, wait_transfer, fetch, commit: no weight of the target changes before the last of them. What
lives between the calls is kept by process, so that ranks which share a process share its link.
"""

from __future__ import annotations

import os
import socket
import time
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import torch

from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.messages import RankAddress, RankReport, StepResult, SyncCommand
from twinkle_ray.weights.transport.packing import checksum
from twinkle_ray.weights.worker.process_state import ProcessState
from twinkle_ray.weights.worker.rank_state import RankState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.planning.rank_plan import RankPlan
    from twinkle_ray.weights.planning.transfer_plan import Digests
    from twinkle_ray.weights.rendezvous.session import Session
    from twinkle_ray.weights.rendezvous.store import StoreAddress
    from twinkle_ray.weights.shards.shard import Weights
    from twinkle_ray.weights.shards.specs import LocalShards

_PROCESSES: dict[str, ProcessState] = {}
_LOCK = Lock()
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class HasWeights(Protocol):
    """A component that takes part in a weight sync; `on_weights(version)` is called where it has that too."""

    def weights(self) -> Weights:
        """This rank's tensors by name."""


def describe(instance: HasWeights, place: RankAddress, known: str | None) -> RankReport:
    """Read the component's weights, and say what this rank holds.

    Args:
        instance: The component.
        place: Which rank.
        known: Digest of the sheet that the controller has.

    Raises:
        TypeError: If the component has no method `weights`.
    """
    if not callable(getattr(instance, "weights", None)):
        raise TypeError(
            f"{type(instance).__name__} is the {place.side} of a weight sync and has no method weights(): "
            "it returns a mapping from name to tensor, DTensor or Shard"
        )
    with _LOCK:
        station = _PROCESSES.setdefault(place.sync, ProcessState())
        seat = station.seats.setdefault((place.side, place.rank), RankState(place.sync))
    seat.look(instance.weights(), written=place.side == "target")
    holding = seat.holding
    host = host_identity()
    return RankReport(
        process=f"{host}/{os.getpid()}",
        host=host,
        node=socket.gethostname(),
        pid=os.getpid(),
        digest=holding.digest,
        sheet=None if holding.digest == known else holding.sheet,
        device=_device_name(holding),
        prepared=None if seat.program is None else seat.program.digest,
        generation=None if station.session is None else station.session.generation,
    )


def serve(instance: HasWeights, place: RankAddress, host: str) -> StoreAddress | None:
    """Open the store on rank 0, where no controller stands apart from the ranks; None on the others."""
    if place.rank:
        return None
    with _LOCK:
        station = _PROCESSES[place.sync]
    return station.serve(host)


def prepare(instance: HasWeights, place: RankAddress, program: RankPlan | None, session: Session | None) -> None:
    """Take a new program, or join a new generation's group; what is None stays.

    Raises:
        PeerFailedError: If another process did not come.
    """
    station, seat = _at(place)
    if program is not None:
        seat.forget()
        seat.program = program
    if session is not None:
        station.join(place, session)


def transfer(instance: HasWeights, place: RankAddress, order: SyncCommand) -> StepResult:
    """Send or receive this rank's buckets; the target's weights stay as they are.

    With `order.detached` it returns when everything is packed, and `wait_transfer` waits for the rest.
    """
    began = time.perf_counter()
    station, seat = _at(place)
    with station.watching(place, order.phase("transfer")):
        handles = station.transfer(place, order)
    return StepResult(dict(handles), dict(seat.checksums), time.perf_counter() - began, _nbytes(seat))


def wait_transfer(instance: HasWeights, place: RankAddress, order: SyncCommand) -> StepResult:
    """Wait for what `transfer` left to the background."""
    began = time.perf_counter()
    station, seat = _at(place)
    with station.watching(place, order.phase("wait_transfer")):
        station.wait_transfer()
    return StepResult(dict(seat.handles), dict(seat.checksums), time.perf_counter() - began, _nbytes(seat))


def fetch(instance: HasWeights, place: RankAddress, order: SyncCommand, handles: Mapping[int, object]) -> StepResult:
    """Take the buckets that sources left in depots, and hash what arrived where that was asked for."""
    began = time.perf_counter()
    station, seat = _at(place)
    program = seat.running(order)
    sums: dict[int, int] = {}
    with station.watching(place, order.phase("fetch")):
        for index, bucket in program.buckets.items():
            if program.routes[index] != "link":
                seat.arrived[index] = seat.depot(program.routes[index]).take(bucket, handles[index])
        if order.checksum:
            sums = {index: checksum(blocks) for index, blocks in seat.arrivals(program).items()}
    return StepResult({}, sums, time.perf_counter() - began, _nbytes(seat))


def digest(instance: HasWeights, place: RankAddress, order: SyncCommand, step: str) -> Digests:
    """Digests of the blocks that this rank sends or could send, or of those that it has received, from its tensors."""
    station, seat = _at(place)
    with station.watching(place, order.phase(step)):
        return seat.digests(seat.running(order), place.side)


def commit(instance: HasWeights, place: RankAddress, order: SyncCommand) -> int:
    """Write what arrived into the target's weights, so that `rollback` can take it back.

    Returns:
        The entries whose values have changed, as a set of bits.
    """
    station, seat = _at(place)
    program = seat.running(order)
    with station.watching(place, order.phase("commit")):
        changed = seat.commit(program, reversible=order.reversible).apply()
        seat.synchronize()
    return changed


def rollback(instance: HasWeights, place: RankAddress, order: SyncCommand) -> None:
    """Roll back a commit that did not succeed on every rank; nothing where this one did not commit."""
    _at(place)[1].rollback()


def finalize(instance: HasWeights, place: RankAddress, order: SyncCommand) -> None:
    """Make the commit final, and call the component's `on_weights` where it has that."""
    station, seat = _at(place)
    with station.showing_life(order.phase("finalize")):
        seat.finalize()
        hook = getattr(instance, "on_weights", None)
        if place.side == "target" and hook is not None:
            hook(order.version)


def answer(instance: HasWeights, place: RankAddress) -> None:
    """Show that this rank is alive."""


def close(instance: HasWeights, place: RankAddress) -> None:
    """Give back everything that this rank kept for a sync."""
    with _LOCK:
        station = _PROCESSES.get(place.sync)
        seat = None if station is None else station.seats.pop((place.side, place.rank), None)
        if station is not None and not station.seats:
            station.close()
            del _PROCESSES[place.sync]
    if seat is not None:
        seat.forget()


def host_identity() -> str:
    """The same for two processes that can open each other's memory: one kernel, one pid namespace, one user."""
    if not os.path.exists(_BOOT_ID):
        return f"{socket.gethostname()}/{os.getuid()}"
    with open(_BOOT_ID) as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}"


def _at(place: RankAddress) -> tuple[ProcessState, RankState]:
    station = _PROCESSES.get(place.sync)
    seat = None if station is None else station.seats.get((place.side, place.rank))
    if station is None or seat is None:
        raise WeightSyncError(f"{place} knows nothing of this sync: its worker was started again")
    return station, seat


def _nbytes(seat: RankState) -> int:
    return 0 if seat.program is None else sum(bucket.nbytes for bucket in seat.program.buckets.values())


def _device_name(holding: LocalShards) -> str:
    devices = {tensor.device for pieces in holding.pieces.values() for _, tensor in pieces}
    if not devices or all(device.type == "cpu" for device in devices):
        return "cpu"
    if len(devices) > 1:
        return "mixed"
    (device,) = devices
    if device.type != "cuda":
        return str(device)
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"

"""The engine on a worker: plain functions of a component, called one after the other by the controller.

Survey, prepare, begin, finish, collect, commit: no weight of the target changes before the last of them. What lives
between the calls is kept by process, so that ranks which share a process share its link.
"""

from __future__ import annotations

import os
import socket
import time
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import torch

from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.messages import Order, Outcome, Place, Report
from twinkle_ray.weights.transport.packing import checksum
from twinkle_ray.weights.worker.process_state import Station
from twinkle_ray.weights.worker.rank_state import Seat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.planning.rank_plan import Program
    from twinkle_ray.weights.planning.transfer_plan import Digests
    from twinkle_ray.weights.rendezvous.session import Session
    from twinkle_ray.weights.rendezvous.store import StoreAddress
    from twinkle_ray.weights.shards.shard import Weights
    from twinkle_ray.weights.shards.specs import Holding

_STATIONS: dict[str, Station] = {}
_LOCK = Lock()
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class HasWeights(Protocol):
    """A component that takes part in a weight sync; `on_weights(version)` is called where it has that too."""

    def weights(self) -> Weights:
        """This rank's tensors by name."""


def survey(instance: HasWeights, place: Place, known: str | None) -> Report:
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
        station = _STATIONS.setdefault(place.sync, Station())
        seat = station.seats.setdefault((place.side, place.rank), Seat(place.sync))
    seat.look(instance.weights(), written=place.side == "target")
    holding = seat.holding
    host = host_identity()
    return Report(
        process=f"{host}/{os.getpid()}",
        host=host,
        node=socket.gethostname(),
        pid=os.getpid(),
        digest=holding.digest,
        sheet=None if holding.digest == known else holding.sheet,
        device=_device_name(holding),
        prepared=None if seat.program is None else seat.program.digest,
        epoch=None if station.session is None else station.session.epoch,
    )


def serve(instance: HasWeights, place: Place, host: str) -> StoreAddress | None:
    """Open the store on rank 0, where no controller stands apart from the ranks; None on the others."""
    if place.rank:
        return None
    with _LOCK:
        station = _STATIONS[place.sync]
    return station.serve(host)


def prepare(instance: HasWeights, place: Place, program: Program | None, session: Session | None) -> None:
    """Take a new program, or join a new epoch's group; what is None stays.

    Raises:
        PeerFailedError: If another process did not come.
    """
    station, seat = _at(place)
    if program is not None:
        seat.forget()
        seat.program = program
    if session is not None:
        station.join(place, session)


def begin(instance: HasWeights, place: Place, order: Order) -> Outcome:
    """Send or receive this rank's buckets; the target's weights stay as they are.

    With `order.detached` it returns when everything is packed, and `finish` waits for the rest.
    """
    began = time.perf_counter()
    station, seat = _at(place)
    with station.watching(place, order.phase("begin")):
        handles = station.begin(place, order)
    return Outcome(dict(handles), dict(seat.checksums), time.perf_counter() - began, _nbytes(seat))


def finish(instance: HasWeights, place: Place, order: Order) -> Outcome:
    """Wait for what `begin` left to the background."""
    began = time.perf_counter()
    station, seat = _at(place)
    with station.watching(place, order.phase("finish")):
        station.finish()
    return Outcome(dict(seat.handles), dict(seat.checksums), time.perf_counter() - began, _nbytes(seat))


def collect(instance: HasWeights, place: Place, order: Order, handles: Mapping[int, object]) -> Outcome:
    """Take the buckets that sources left in depots, and hash what arrived where that was asked for."""
    began = time.perf_counter()
    station, seat = _at(place)
    program = seat.running(order)
    sums: dict[int, int] = {}
    with station.watching(place, order.phase("collect")):
        for index, bucket in program.buckets.items():
            if program.routes[index] != "link":
                seat.arrived[index] = seat.depot(program.routes[index]).take(bucket, handles[index])
        if order.checksum:
            sums = {index: checksum(blocks) for index, blocks in seat.arrivals(program).items()}
    return Outcome({}, sums, time.perf_counter() - began, _nbytes(seat))


def digest(instance: HasWeights, place: Place, order: Order, step: str) -> Digests:
    """Digests of the blocks that this rank sends or could send, or of those that it has received, from its tensors."""
    station, seat = _at(place)
    with station.watching(place, order.phase(step)):
        return seat.digests(seat.running(order), place.side)


def commit(instance: HasWeights, place: Place, order: Order) -> int:
    """Write what arrived into the target's weights, so that `undo` can take it back.

    Returns:
        The entries whose values have changed, as a set of bits.
    """
    station, seat = _at(place)
    program = seat.running(order)
    with station.watching(place, order.phase("commit")):
        changed = seat.ledger(program, reversible=order.reversible).write()
        seat.synchronize()
    return changed


def undo(instance: HasWeights, place: Place, order: Order) -> None:
    """Take back a commit that did not succeed on every rank; nothing where this one did not commit."""
    _at(place)[1].undo()


def settle(instance: HasWeights, place: Place, order: Order) -> None:
    """Make the commit final, and call the component's `on_weights` where it has that."""
    station, seat = _at(place)
    with station.showing_life(order.phase("settle")):
        seat.settle()
        hook = getattr(instance, "on_weights", None)
        if place.side == "target" and hook is not None:
            hook(order.version)


def answer(instance: HasWeights, place: Place) -> None:
    """Show that this rank is alive."""


def close(instance: HasWeights, place: Place) -> None:
    """Give back everything that this rank kept for a sync."""
    with _LOCK:
        station = _STATIONS.get(place.sync)
        seat = None if station is None else station.seats.pop((place.side, place.rank), None)
        if station is not None and not station.seats:
            station.close()
            del _STATIONS[place.sync]
    if seat is not None:
        seat.forget()


def host_identity() -> str:
    """The same for two processes that can open each other's memory: one kernel, one pid namespace, one user."""
    if not os.path.exists(_BOOT_ID):
        return f"{socket.gethostname()}/{os.getuid()}"
    with open(_BOOT_ID) as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}"


def _at(place: Place) -> tuple[Station, Seat]:
    station = _STATIONS.get(place.sync)
    seat = None if station is None else station.seats.get((place.side, place.rank))
    if station is None or seat is None:
        raise WeightSyncError(f"{place} knows nothing of this sync: its worker was started again")
    return station, seat


def _nbytes(seat: Seat) -> int:
    return 0 if seat.program is None else sum(bucket.nbytes for bucket in seat.program.buckets.values())


def _device_name(holding: Holding) -> str:
    devices = {tensor.device for pieces in holding.pieces.values() for _, tensor in pieces}
    if not devices or all(device.type == "cpu" for device in devices):
        return "cpu"
    if len(devices) > 1:
        return "mixed"
    (device,) = devices
    if device.type != "cuda":
        return str(device)
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"

"""Starting workers: an actor in each place, asked where it is, ordered by node and device, and given its rank."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import Counter
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.workers.group import Member, RayGroup
from twinkle_ray.workers.rank_actor import RankActor, Role, Seat, visibility_variable
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.placement.reserve import Place


ATTEMPTS = 100  # of what may be done twice, where messages get lost; the time is limited, and the dead do not answer
_HIDDEN = ("GPU", "NPU")


class Roster:
    """The actors of one group before they have ranks.

    Args:
        group: The group.
        places: What is reserved for it.
    """

    def __init__(self, group: DeviceGroup, places: Sequence[Place]) -> None:
        self.group = group
        self.places = places
        made = ray.remote(RankActor)
        self.actors: list[Any] = [
            made.options(**place.options(), max_restarts=0, max_task_retries=0).remote() for place in places
        ]
        self.seats: list[Seat] = []

    def sit(self, timeout: float) -> None:
        """Wait until every actor has told where it is, and bring them into the order of their ranks.

        Raises:
            PlacementError: One did not start, or does not have the devices that it should.
        """
        kind = self.group.device_type
        again = {"max_task_retries": ATTEMPTS}  # what a worker is asked before it has a rank may be asked twice
        asked = [
            actor.seat.options(**again).remote(kind, place.devices)
            for actor, place in zip(self.actors, self.places, strict=True)
        ]
        self.seats = get_within(asked, timeout, f"the workers of group {self.group.name!r} did not start")
        order = rank_order(self.seats, self.places)
        self.seats = [self.seats[i] for i in order]
        self.actors = [self.actors[i] for i in order]
        self.places = [self.places[i] for i in order]
        self._check_devices()

    def labels(self) -> Mapping[tuple[str, str], str]:
        """Labels of the workers by their node's address and their process id."""
        size = len(self.seats)
        return {
            (seat.address, str(seat.pid)): WorkerInfo(self.group.name, rank, size).label()
            for rank, seat in enumerate(self.seats)
        }

    def begin(self, *, seed: int, environment: Mapping[str, str], timeout: float, replay: bool) -> RayGroup:
        """Give every actor its rank.

        Args:
            seed: Seed of every process.
            environment: Variables that they are given, beside those of ranks and devices.
            timeout: Seconds until they must have answered.
            replay: Keep how components were constructed, so that they can be constructed again.

        Raises:
            PlacementError: One was lost meanwhile.
        """
        what = f"the workers of group {self.group.name!r} did not begin"
        port = get_within([self.actors[0].hold_port.options(max_task_retries=ATTEMPTS).remote()], timeout, what)[0]
        name, size = self.group.name, len(self.actors)
        shared = {**environment, **rendezvous(self.seats, port)}
        shared.update(hidden_devices(self.group.device_type))
        begun = []
        for rank, (actor, local) in enumerate(zip(self.actors, local_ranks(self.seats), strict=True)):
            own = {**shared, **local, "RANK": str(rank)}
            role = Role(name, rank, size, seed, own, import_paths())
            begun.append(actor.begin.options(max_task_retries=ATTEMPTS).remote(role))
        stacks = get_within(begun, timeout, what)
        infos = [WorkerInfo(name, rank, size, seat.host, seat.pid) for rank, seat in enumerate(self.seats)]
        nodes = [seat.node_id for seat in self.seats]
        members = [Member(*told) for told in zip(self.actors, infos, nodes, stacks, strict=True)]
        return RayGroup(name, members, is_driver=True, replay=replay)

    def _check_devices(self) -> None:
        variable = visibility_variable(self.group.device_type)
        if variable is None:
            return
        for seat in self.seats:
            if len(seat.devices) != self.group.gpus_per_worker or seat.visible != ",".join(seat.devices):
                raise PlacementError(
                    f"a worker of group {self.group.name!r} on {seat.host} should have {self.group.gpus_per_worker} "
                    f"{self.group.device_type}, but was given {list(seat.devices)} and sees {variable}={seat.visible!r}"
                )


def check_unique(rosters: Sequence[Roster]) -> None:
    """See to it that no device went to two workers.

    Raises:
        PlacementError: One did; the message names it and its holders.
    """
    holders: dict[tuple[str, str, str], str] = {}
    for roster in rosters:
        for rank, seat in enumerate(roster.seats):
            label = f"{roster.group.name}[{rank}/{len(roster.seats)}]"
            for device in seat.devices:
                holder = holders.setdefault((seat.node_id, roster.group.device_type, device), label)
                if holder != label:
                    raise PlacementError(
                        f"{roster.group.device_type} {device} of {seat.host} was given to {holder} and to {label}"
                    )


def rank_order(seats: Sequence[Seat], places: Sequence[Place]) -> list[int]:
    """Indices of the seats by node, then by device."""

    def key(i: int) -> tuple[int, list[tuple[int, str]], int]:
        devices = [(int(device), "") if device.isdecimal() else (0, device) for device in seats[i].devices]
        return places[i].node, sorted(devices), i

    return sorted(range(len(seats)), key=key)


def rendezvous(seats: Sequence[Seat], port: int) -> Mapping[str, str]:
    """The variables by which torch.distributed finds its peers; the same for all ranks."""
    return {"WORLD_SIZE": str(len(seats)), "MASTER_ADDR": seats[0].address, "MASTER_PORT": str(port)}


def local_ranks(seats: Sequence[Seat]) -> Sequence[Mapping[str, str]]:
    """For each rank, its place among those of its node, and their number."""
    per_node = Counter(seat.node_id for seat in seats)
    seen: Counter[str] = Counter()
    out = []
    for seat in seats:
        out.append({"LOCAL_RANK": str(seen[seat.node_id]), "LOCAL_WORLD_SIZE": str(per_node[seat.node_id])})
        seen[seat.node_id] += 1
    return out


def import_paths() -> list[str]:
    """Where the driver finds the user's own modules: what is on its `sys.path`, but for what is installed."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    told = dict.fromkeys(os.path.abspath(path or os.getcwd()) for path in (*sys.path, ""))
    return [path for path in told if os.path.isdir(path) and not (path + os.sep).startswith(installed)]


def hidden_devices(device_type: str) -> Mapping[str, str]:
    """The variables that keep a worker from the devices of other types, which are others' to use."""
    own = visibility_variable(device_type)
    others = {variable for kind in _HIDDEN if (variable := visibility_variable(kind)) not in (None, own)}
    return dict.fromkeys(others, "")


def get_within(refs: Sequence[Any], timeout: float, what: str) -> list[Any]:
    """Answers of workers that are starting.

    Args:
        refs: The answers.
        timeout: Seconds.
        what: What it means when they do not come.

    Raises:
        PlacementError: One is late, or its worker is lost.
    """
    try:
        answers: list[Any] = ray.get(list(refs), timeout=timeout)
    except ray.exceptions.GetTimeoutError:
        pending = len(ray.wait(list(refs), num_returns=len(refs), timeout=0)[1])
        raise PlacementError(f"{what} within {timeout:g} s: {pending} of {len(refs)} have not answered") from None
    except ray.exceptions.RayError as error:
        raise PlacementError(f"{what}: {error}") from error
    return answers

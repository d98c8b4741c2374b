"""The actors of a group: each is started in its reserved place, located, and given a rank by node and device."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.nodes import ATTEMPTS, remote_once
from twinkle_ray.placement.rank_environment import (
    DEVICE_TYPE,
    hidden_devices,
    import_paths,
    local_ranks,
    rendezvous,
    threads,
)
from twinkle_ray.ray_internals import visibility_variable
from twinkle_ray.workers.group import RayGroup
from twinkle_ray.workers.member import Member
from twinkle_ray.workers.rank_actor import CONCURRENCY, RankActor, RankAssignment, WorkerLocation
from twinkle_remote.errors import PlacementError
from twinkle_remote.protocol import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.placement.reservation import Reserved


# Beside the other concurrency groups, a concurrency of 1 is a thread on which methods run in order.
_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1}


class ActorSet:
    """The actors of one group before they have ranks.

    Args:
        group: The group.
        reserved: What is reserved for it.
        options: Further options of Ray for each actor.
    """

    def __init__(
        self,
        group: DeviceGroup,
        reserved: Sequence[Reserved],
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.group = group
        self._options = options
        self.reserved = reserved
        self.actors: list[Any] = [_start(one, options) for one in reserved]
        self._asked = self._ask(self.actors, reserved)
        self.locations: list[WorkerLocation] = []
        self._assignments: list[RankAssignment] = []

    def locate(self, timeout: float) -> None:
        """Wait until every actor has reported its location, and bring them into the order of their ranks.

        Args:
            timeout: Seconds.

        Raises:
            PlacementError: One did not start, or does not have the devices that it should.
        """
        self.locations = self._located(self._asked, timeout)
        order = rank_order(self.locations, self.reserved)
        self.locations = [self.locations[i] for i in order]
        self.actors = [self.actors[i] for i in order]
        self.reserved = [self.reserved[i] for i in order]
        self._check_devices()

    def assign_ranks(
        self, *, seed: int, environment: Mapping[str, str], timeout: float, keeps_constructors: bool
    ) -> RayGroup:
        """Give every actor its rank.

        Args:
            seed: Seed of every process.
            environment: Variables of every process, in addition to those of ranks and devices.
            timeout: Seconds in which every actor must answer.
            keeps_constructors: Keep the constructors' tasks, so that they can run again.

        Raises:
            PlacementError: An actor was lost meanwhile.
        """
        what = f"the workers of group {self.group.name!r} did not take their ranks"
        port = get_within([self.actors[0].hold_port.options(max_task_retries=ATTEMPTS).remote()], timeout, what)[0]
        name, size = self.group.name, len(self.actors)
        self._assignments = []
        shared = {**environment, **rendezvous(self.locations, port)}
        shared.update({**hidden_devices(self.group.device_type), DEVICE_TYPE: self.group.device_type})
        kind, paths = self.group.device_type, import_paths()
        for rank, local in enumerate(local_ranks(self.locations, kind)):
            at, node_devices = self.locations[rank], self.reserved[rank].node_devices
            own = {**threads(at, kind, self.group.gpus_per_worker, node_devices), **shared, **local, "RANK": str(rank)}
            self._assignments.append(RankAssignment(name, rank, size, seed, own, paths))
        return RayGroup(
            name, self._members(range(size), timeout), is_driver=True, keeps_constructors=keeps_constructors
        )

    def restart(self, ranks: Sequence[int], timeout: float) -> Sequence[Member]:
        """Start other workers in the places of some ranks, which are ended, and give them these ranks.

        Raises:
            PlacementError: One did not start, or does not have the devices that it should.
        """
        for rank in ranks:
            ray.kill(self.actors[rank], no_restart=True)
            self.actors[rank] = _start(self.reserved[rank], self._options)
        places = [self.reserved[rank] for rank in ranks]
        asked = self._ask([self.actors[rank] for rank in ranks], places)
        for rank, at in zip(ranks, self._located(asked, timeout), strict=True):
            self.locations[rank] = at
        self._check_devices()
        return self._members(ranks, timeout)

    def _ask(self, actors: Sequence[Any], reserved: Sequence[Reserved]) -> list[Any]:
        kind = self.group.device_type
        retried = {"max_task_retries": ATTEMPTS}  # requests to a worker without a rank may run twice
        return [
            actor.locate.options(**retried).remote(kind, one.devices)
            for actor, one in zip(actors, reserved, strict=True)
        ]

    def _located(self, asked: Sequence[Any], timeout: float) -> list[WorkerLocation]:
        return get_within(asked, timeout, f"the workers of group {self.group.name!r} did not start")

    def _members(self, ranks: Sequence[int], timeout: float) -> list[Member]:
        """Give workers their ranks."""
        assigned = [
            self.actors[rank].assign_rank.options(max_task_retries=ATTEMPTS).remote(self._assignments[rank])
            for rank in ranks
        ]
        name, size = self.group.name, len(self.actors)
        memories = get_within(assigned, timeout, f"the workers of group {name!r} did not take their ranks")
        members = []
        for rank, memory in zip(ranks, memories, strict=True):
            actor, at = self.actors[rank], self.locations[rank]
            info = WorkerInfo(name, rank, size, at.host, at.pid)
            members.append(Member(actor, actor._actor_id.hex(), info, at.node_id, memory))
        return members

    def _check_devices(self) -> None:
        variable = visibility_variable(self.group.device_type)
        if variable is None:
            return
        for at in self.locations:
            if len(at.devices) != self.group.gpus_per_worker or at.visible != ",".join(at.devices):
                raise PlacementError(
                    f"a worker of group {self.group.name!r} on {at.host} should have {self.group.gpus_per_worker} "
                    f"{self.group.device_type}, but was given {list(at.devices)} and sees {variable}={at.visible!r}"
                )


def _start(reserved: Reserved, options: Mapping[str, Any]) -> Any:
    """An actor in a reserved place."""
    actor_class = remote_once(RankActor, CONCURRENCY)
    return actor_class.options(**reserved.options(), **_OPTIONS, **options).remote()


def get_within(refs: Sequence[Any], timeout: float, what: str) -> list[Any]:
    """Return the answers of workers that are starting; waits until all have answered, one is lost, or time is over.

    Args:
        refs: The answers.
        timeout: Seconds.
        what: Begin of the error's message.

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


def rank_order(locations: Sequence[WorkerLocation], reserved: Sequence[Reserved]) -> list[int]:
    """Return the indices of the locations, ordered by node, then by device."""

    def key(i: int) -> tuple[int, list[tuple[int, str]], int]:
        at = locations[i]
        numbers = at.numbers or [int(device) if device.isdecimal() else 0 for device in at.devices]
        return reserved[i].node, sorted(zip(numbers, at.devices, strict=True)), i

    return sorted(range(len(locations)), key=key)

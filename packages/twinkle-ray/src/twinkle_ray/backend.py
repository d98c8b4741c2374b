"""The Ray backend: it joins or starts a cluster, runs groups of actors on it, and frees both at the end."""

from __future__ import annotations

import math
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.cluster import Cluster
from twinkle_ray.cluster.nodes import ATTEMPTS
from twinkle_ray.objects.object_store import RayStore
from twinkle_ray.objects.segments import allow, host_identity, stop_sharing
from twinkle_ray.placement.actor_set import ActorSet, get_within
from twinkle_ray.placement.colocate import check_colocate, nodes_to_keep
from twinkle_ray.placement.reservation import Reservation
from twinkle_ray.workers.core import RayGroups
from twinkle_remote.backends.support import driver_line, raise_failures, report_start, running
from twinkle_remote.errors import CallTimeoutError, TwinkleError
from twinkle_remote.protocol import Backend, InputReplies, SessionDefaults, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.workers.group import RayGroup
    from twinkle_ray.workers.member import Member


_UNCONNECTED = "workers did not connect to the groups"


class RayBackend(Backend):
    """Groups of Ray actors.

    Args:
        groups: At least one.
        seed: Seed of every worker process.
        address: Address of a cluster to join; "local" for a cluster of this session's own; None for RAY_ADDRESS, or one
            of its own.
        placement_timeout: Seconds to wait for the resources of the groups; 0 tries once.
        start_timeout: Seconds that workers, and later constructors, may take to start; above 0.
        env_allow: Names of environment variables that workers of a joined cluster get with the harmless ones of
            `twinkle_ray.cluster.environment`; `*` and `?` are wildcards. Workers of a cluster of its own inherit all.
        colocate: Sets of names of groups; the groups of a set are placed on the same nodes, each with its part.
        restart: "group" keeps what `restart` needs to rebuild a group; None does not.
        ray_options: Further arguments of `ray.init`.

    Raises:
        PlacementError: The groups cannot be placed.
        ValueError: A number of seconds is negative or infinite, or an option is none of its values.
    """

    def __init__(
        self,
        groups: Sequence[DeviceGroup],
        *,
        seed: int = 42,
        address: str | None = None,
        placement_timeout: float = 60.0,
        start_timeout: float = 120.0,
        env_allow: Sequence[str] = (),
        colocate: Sequence[Sequence[str]] = (),
        restart: str | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        if restart not in (None, "group"):
            raise ValueError(f'restart={restart!r} must be None or "group"')
        self.start_timeout: float = check_seconds("start_timeout", start_timeout)
        if self.start_timeout == 0:
            raise ValueError("start_timeout=0 leaves workers no time to start; 120 is the default")
        self._placement_timeout = check_seconds("placement_timeout", placement_timeout)
        self._colocate = check_colocate(colocate, groups)
        self._seed, self._env_allow = seed, (env_allow,) if isinstance(env_allow, str) else tuple(env_allow)
        self.can_restart = restart == "group"
        self._reservation: Reservation | None = None
        self._actor_sets: dict[str, ActorSet] = {}
        self._made: dict[str, RayGroup] = {}
        self._defaults = SessionDefaults()
        cpus = sum(group.num_workers for group in groups if group.device_type == "CPU")
        self._cluster = Cluster(address, num_cpus=cpus, seed=seed, options=ray_options)
        try:
            self.store = RayStore()
            self._groups = self._start(groups)
        except BaseException:
            self.close()
            raise

    def _start(self, groups: Sequence[DeviceGroup]) -> RayGroups:
        listed = ", ".join(f"{group.name} ({group.num_workers} x {group.device_type})" for group in groups)
        report_start(f"placing {listed}")
        self._reservation = Reservation(groups, self._placement_timeout, self._colocate)
        for group in groups:
            self._actor_sets[group.name] = self._actors_of(group)
        for actor_set in self._actor_sets.values():
            actor_set.locate(self.start_timeout)
        ready = [self._assign_ranks(actor_set) for actor_set in self._actor_sets.values()]
        found = RayGroups(ready, self.store)
        self._connect(found.all())
        workers = sum(len(group.members) for group in ready)
        count = len({member.node for group in ready for member in group.members})
        report_start(f"{workers} workers are ready on {count} {'node' if count == 1 else 'nodes'}")
        return found

    def _actors_of(self, group: DeviceGroup) -> ActorSet:
        assert self._reservation is not None
        places, options = self._reservation.places[group.name], self._cluster.start_options()
        return ActorSet(group, places, options)

    def _assign_ranks(self, actor_set: ActorSet) -> RayGroup:
        environment = self._cluster.environment(self._env_allow)
        group = self._made[actor_set.group.name] = actor_set.assign_ranks(
            seed=self._seed, environment=environment, timeout=self.start_timeout, keeps_constructors=self.can_restart
        )
        return group

    def _connect(self, groups: Sequence[RayGroup], awaited: Callable[[Member], bool] = lambda _: True) -> None:
        """Connect every worker to every group.

        Args:
            groups: All groups.
            awaited: Whether to wait for a worker; others run this before any later call.
        """
        here, stored = ray.get_runtime_context().get_node_id(), ray.put(list(groups))
        members = [member for group in groups for member in group.members]
        one_node = all(member.node == here for member in members)
        shares = one_node and {member.memory for member in members} <= {host_identity()}
        self.store.cuts = not one_node
        allow(placing=shares)
        connecting = {
            member.id: member.actor.connect.options(max_task_retries=ATTEMPTS).remote(
                [stored], self._defaults, one_node=one_node, shares=shares
            )
            for member in members
        }
        asked = [connecting[member.id] for member in members if awaited(member)]
        get_within(asked, self.start_timeout, _UNCONNECTED)

    def configure(self, defaults: SessionDefaults) -> None:
        """Give the session's defaults to every worker, also to those of groups that are restarted later."""
        if defaults == self._defaults:
            return
        self._defaults = defaults
        members = [member for group in self._groups.all() for member in group.members]
        asked = [member.actor.configure.options(max_task_retries=ATTEMPTS).remote(defaults) for member in members]
        get_within(asked, self.start_timeout, _UNCONNECTED)

    def restart(self, name: str) -> None:
        """Rebuild a group: start new workers, construct its components again, and call their `restore()`.

        Args:
            name: Name of the group; its workers need not be dead.

        Raises:
            TwinkleError: `initialize` was not given `restart="group"`.
            PlacementError: The cluster has no room for the group any more.
            RemoteCallError: A constructor or a `restore` raised.
        """
        old = self.group(name)
        if not self.can_restart or self._reservation is None:
            raise TwinkleError(
                f"group {name!r} cannot be restarted: its components' constructor arguments were not kept; "
                'initialize("ray", restart="group") keeps them'
            )
        actor_set = self._actor_sets[name]
        at = nodes_to_keep(name, self._colocate, actor_set.locations)
        for actor in actor_set.actors:
            ray.kill(actor, no_restart=True)
        self._reservation.free([name])
        self._reservation.take([actor_set.group], self._placement_timeout, at)
        fresh = self._actor_sets[name] = self._actors_of(actor_set.group)
        fresh.locate(self.start_timeout)
        group = self._assign_ranks(fresh)
        self._groups.replace([group])
        self._connect(self._groups.all(), lambda member: member.info.group == name)
        catch_up(group, old.created, self.start_timeout)

    def restart_ranks(self, name: str, ranks: Sequence[int]) -> None:
        """Start other workers in the places of some ranks of a group, and construct its components on them again.

        The other workers of the group go on. No call is repeated.

        Args:
            name: Name of the group.
            ranks: Ranks whose workers are ended, or have ended.

        Raises:
            PlacementError: The workers did not start.
            RemoteCallError: A constructor or a `restore` raised.
        """
        group, actor_set = self.group(name), self._actor_sets[name]
        group.restart(actor_set.restart(ranks, self.start_timeout))
        self._groups.replace([group])
        self._connect(self._groups.all(), lambda member: member.info.group == name and member.info.rank in ranks)
        created = {
            instance: {rank: made for rank, made in by_rank.items() if rank in ranks}
            for instance, by_rank in group.created.items()
        }
        catch_up(group, {name: made for name, made in created.items() if made}, self.start_timeout)

    def group(self, name: str) -> RayGroup:
        """A group by name."""
        return self._groups.group(name)

    def after_fork(self) -> bool:
        """Leave the cluster, and the connection to it, to the parent process."""
        return self._groups.after_fork()

    def close(self) -> None:
        """End every worker, free what was reserved, and end the cluster if this backend started it."""
        if ray.is_initialized():
            for actor_set in self._actor_sets.values():
                for actor in actor_set.actors:
                    ray.kill(actor, no_restart=True)
            if self._reservation is not None:
                self._reservation.free()
        self._leave_actors()
        stop_sharing()
        self._actor_sets, self._reservation = {}, None
        self._cluster.close()

    def _leave_actors(self) -> None:
        """Let go of every handle: Ray takes none back when the cluster has ended, and keeps a connection for each."""
        for group in self._made.values():
            group.leave()
        for actor_set in self._actor_sets.values():
            actor_set.actors.clear()


def catch_up(
    group: RayGroup,
    created: Mapping[str, Mapping[int, tuple[Task, InputReplies]]],
    timeout: float,
) -> None:
    """Run the constructors again in their order; call `restore` after each one whose class has it.

    Args:
        group: The new workers.
        created: The tasks that constructed components, by instance, then by rank.
        timeout: Seconds that one constructor, or one `restore`, may take.
    """
    for by_rank in created.values():
        first = next(iter(by_rank.values()))[0]
        _together(group, first.name, by_rank, timeout)
        if callable(getattr(first.target, "restore", None)):
            name = f"{first.target.__name__}.restore"
            task = Task("method", first.instance, name, "restore")
            _together(group, name, dict.fromkeys(by_rank, (task, InputReplies())), timeout)


def _together(group: RayGroup, name: str, tasks: Mapping[int, tuple[Task, InputReplies]], timeout: float) -> None:
    pending = {rank: group.submit([rank], [task], [0], inputs)[0] for rank, (task, inputs) in tasks.items()}
    wait(pending.values(), timeout)
    if late := [rank for rank, reply in pending.items() if not reply.done()]:
        raise CallTimeoutError(f"{name} on {group.name} is not done after {timeout:g} s on ranks {late}", (), late)
    failures = [failure for reply in pending.values() if (failure := reply.result().failure) is not None]
    if failures:
        raise_failures(name, group.name, failures, driver_line())


def restart(group: str) -> None:
    """Rebuild a group of the running Ray session, whose workers died or do not answer.

    New workers take the place of the old ones. Its components are constructed again with the same arguments, and
    `restore()` is called on those that have it. Handles stay valid. No call is repeated.

    The workers are seeded as the first ones were, so draws from `random`, numpy and torch begin anew. A component that
    must not repeat its draws seeds a generator of its own in `restore()`.

    Args:
        group: Name of the group; `initialize` must have been given `restart="group"`.

    Raises:
        TwinkleError: `restart="group"` was not given, or the backend is not Ray.
        PlacementError: The cluster has no room for the group any more, or lacks a node that the group shares by
            `colocate` with others.
        RemoteCallError: A constructor or a `restore` raised.
    """
    backend = running().backend
    if not isinstance(backend, RayBackend):
        raise TwinkleError(f"restart({group!r}) needs the Ray backend on the driver, this is {type(backend).__name__}")
    backend.restart(group)


def check_seconds(name: str, value: float) -> float:
    """Return a number of seconds, numpy's too, as a float.

    Args:
        name: Name of the option.
        value: From 0 on.

    Raises:
        ValueError: It is negative, infinite or NaN.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r} must be a finite number of seconds from 0 on; 86400 is a day")
    return float(value)

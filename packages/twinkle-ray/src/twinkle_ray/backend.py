"""The Ray backend: it joins or starts a cluster, runs groups of actors on it, and frees both at the end."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.by_node.choice import check_calls, reconnect_ranks, start_tree
from twinkle_ray.cluster.cluster import Cluster
from twinkle_ray.cluster.node_actors import ATTEMPTS
from twinkle_ray.cluster.node_monitor import NodeMonitor
from twinkle_ray.cluster.places import HEAD, addresses_of
from twinkle_ray.cluster.raylet import forget_raylet, watch_raylet
from twinkle_ray.forkserver.interpreter import chosen_start_method
from twinkle_ray.objects.object_store import RayStore
from twinkle_ray.objects.shared_memory.memory_offers import MemoryOffers
from twinkle_ray.options import check_names, check_seconds
from twinkle_ray.placement.actor_set import ActorSet, check_unique
from twinkle_ray.placement.colocate import check_colocate, nodes_to_keep
from twinkle_ray.placement.first_replies import get_within
from twinkle_ray.placement.reservation import Reservation
from twinkle_ray.placement.start_progress import StartProgress
from twinkle_ray.telemetry.logs import WorkerLogs
from twinkle_ray.telemetry.metrics import Exporter
from twinkle_ray.workers.catch_up import catch_up
from twinkle_ray.workers.groups import RayGroups
from twinkle_ray.workers.node_agent import report_to_agents, start_agents
from twinkle_ray.workers.records import RecordsOfWorkers
from twinkle_remote.backends.support import report_start
from twinkle_remote.errors import TwinkleError
from twinkle_remote.protocol import Backend, SessionDefaults

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.by_node.agent_tree import AgentTree
    from twinkle_ray.by_node.choice import Calls
    from twinkle_ray.forkserver.interpreter import StartMethod
    from twinkle_ray.workers.group import RayGroup
    from twinkle_ray.workers.member import Member
    from twinkle_remote import CallRecord
    from twinkle_remote.protocol import Outcome, Reply


_UNCONNECTED = "workers did not connect to the groups"
_OTHER_AGENTS = 5.0  # seconds that a restart waits for agents that were there before; one of them may have ended
_LAST_LINES = 0.5  # seconds that the end of a session waits for the last lines of its workers


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
        metrics: Export the metrics of calls to Ray, every few seconds.
        calls: "by_node" sends one message for each node to its agent, which hands the tasks to the node's ranks and
            answers for all of them; "direct" sends one message to each rank; "auto" decides by group.
        progress: Show how many workers are ready, when their start takes longer than 5 seconds: a bar on a terminal
            and in a notebook, a line every 10 seconds elsewhere.
        start_method: How the workers of a cluster of this session's own start: "forkserver" has each node load Ray, and
            what the driver has loaded of numpy, torch, FSDP, DTensor, pipelining and transformers, once, and makes
            every worker a fork of that process; "spawn" starts each by itself. None is "forkserver" where all groups
            are of CPUs, and "spawn" where one has devices. The nodes of a cluster that is joined start workers as they
            were asked to.
        ray_options: Further arguments of `ray.init`.

    Raises:
        PlacementError: The groups cannot be placed.
        TypeError: A number of seconds is not a number, or a name is not a string.
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
        metrics: bool = False,
        calls: Calls = "auto",
        progress: bool = True,
        start_method: StartMethod | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        if restart not in (None, "group"):
            raise ValueError(f'restart={restart!r} must be None or "group"')
        self.start_timeout: float = check_seconds("start_timeout", start_timeout)
        if self.start_timeout == 0:
            raise ValueError("start_timeout=0 leaves workers no time to start; 120 is the default")
        self._placement_timeout = check_seconds("placement_timeout", placement_timeout)
        self._colocate = check_colocate(colocate, groups)
        self._seed, self._env_allow = seed, check_names(env_allow)
        self._can_restart = restart == "group"
        self._calls, self._progress = check_calls(calls), progress
        self._tree: AgentTree | None = None
        self._reservation: Reservation | None = None
        self._actor_sets: dict[str, ActorSet] = {}
        self._made: dict[str, RayGroup] = {}
        self._offers = MemoryOffers()
        self._agents: dict[str, Any] = {}
        self._defaults = SessionDefaults()
        self._end_waiting: Callable[[], None] = lambda: None
        self._logs: WorkerLogs | None = None
        self._monitor: NodeMonitor | None = None
        self._exporter: Exporter | None = None
        self._records = RecordsOfWorkers()
        cpus = sum(group.num_workers for group in groups if group.device_type == "CPU")
        how = chosen_start_method(start_method, (group.device_type for group in groups))
        self._cluster = Cluster(address, num_cpus=cpus, seed=seed, start_method=how, options=ray_options)
        try:
            watch_raylet()
            self._logs = WorkerLogs()
            self._groups = self._start(groups)
            self.store: RayStore = self._groups.store
            self._exporter = Exporter() if metrics else None
        except BaseException:
            self.close()
            raise

    def _start(self, groups: Sequence[DeviceGroup]) -> RayGroups:
        listed = ", ".join(f"{group.name} ({group.num_workers} x {group.device_type})" for group in groups)
        report_start(f"placing {listed}")
        progress = StartProgress(sum(group.num_workers for group in groups), shown=self._progress)
        try:
            self._reservation = Reservation(groups, self._placement_timeout, self._colocate, progress.waiting)
            here = ray.get_runtime_context().get_node_id()
            nodes = sorted({here, *(at.node_id for places in self._reservation.places.values() for at in places)})
            self._monitor = NodeMonitor(addresses_of(nodes), report=partial(report_to_agents, self._agents))
            for group in groups:
                self._actor_sets[group.name] = self._actors_of(group)
            for actor_set in self._actor_sets.values():
                actor_set.locate(self.start_timeout, partial(self._show, progress))
        finally:
            progress.close()
        check_unique(list(self._actor_sets.values()))
        ready = [self._assign_ranks(actor_set) for actor_set in self._actor_sets.values()]
        agents = start_agents(nodes, self._agents) if len(nodes) > 1 else {}
        self._connect_all(ready, agents)
        running = RayGroups(ready, RayStore(), self._agents, self._monitor, self._agents.get(here))
        self._end_waiting = running.close
        self._tree = start_tree(ready, self._calls, self.start_timeout, self._monitor)
        workers = sum(len(group.members) for group in ready)
        count = len({member.node for group in ready for member in group.members})
        report_start(f"{workers} workers are ready on {count} {'node' if count == 1 else 'nodes'}")
        return running

    def _actors_of(self, group: DeviceGroup) -> ActorSet:
        assert self._reservation is not None
        places, options = self._reservation.places[group.name], self._cluster.start_options()
        return ActorSet(group, places, self._monitor, options)

    def _show(self, progress: StartProgress) -> None:
        if progress.due:
            late = [(one, count) for one in self._actor_sets.values() if (count := one.missing())]
            progress.ready({one.group.name: (count, len(one.actors)) for one, count in late})

    def _assign_ranks(self, actor_set: ActorSet) -> RayGroup:
        environment = self._cluster.environment(self._env_allow)
        if self._logs is not None:
            self._logs.add_labels(actor_set.labels())
        group = self._made[actor_set.group.name] = actor_set.assign_ranks(
            seed=self._seed, environment=environment, timeout=self.start_timeout, keeps_constructors=self._can_restart
        )
        return group

    def _connect_all(self, groups: Sequence[RayGroup], agents: Mapping[str, Any]) -> None:
        """Connect every worker to every group; the agents' answers, by node id, are waited for meanwhile."""
        members = [member for group in groups for member in group.members]
        stored = ray.put(list(groups))
        connecting = [self._connect(member, stored) for member in members]
        self._wait_for([*(member.node for member in members), *agents], [*connecting, *agents.values()])

    def _wait_for(self, nodes: Sequence[str], answers: Sequence[Any]) -> None:
        self._offers.take(get_within(answers, self.start_timeout, _UNCONNECTED, nodes, self._monitor))

    def _connect(self, member: Member, groups: ray.ObjectRef[list[RayGroup]]) -> Any:
        connect = member.actor.connect.options(max_task_retries=ATTEMPTS)
        return connect.remote([groups], self._agents.get(member.node), self._defaults, self._offers.to(member))

    def configure(self, defaults: SessionDefaults) -> None:
        """Give the session's defaults to every worker, also to those of groups that are restarted later."""
        if defaults == self._defaults:
            return
        self._defaults = defaults
        members = [member for group in self._groups.all() for member in group.members]
        asked = [member.actor.configure.options(max_task_retries=ATTEMPTS).remote(defaults) for member in members]
        self._wait_for([member.node for member in members], asked)

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
        if not self._can_restart or self._reservation is None:
            raise TwinkleError(
                f"group {name!r} cannot be restarted: its components' constructor arguments were not kept; "
                'initialize("ray", restart="group") keeps them'
            )
        why = None if self._monitor is None else self._monitor.lost(HEAD)
        if why is not None:
            raise TwinkleError(f"group {name!r} cannot be restarted: {why}; shutdown() and initialize() start anew")
        actor_set = self._actor_sets[name]
        at = nodes_to_keep(name, self._colocate, actor_set.locations, self._lost())
        for actor in actor_set.actors:
            ray.kill(actor, no_restart=True)
        self._reservation.free([name])
        self._reservation.take([actor_set.group], self._placement_timeout, at)
        if self._monitor is not None:
            self._monitor.watch(addresses_of({place.node_id for place in self._reservation.places[name]}))
        fresh = self._actor_sets[name] = self._actors_of(actor_set.group)
        fresh.locate(self.start_timeout)
        group = self._assign_ranks(fresh)
        self._groups.replace(group)
        self._add_agents(group)
        reconnect_ranks(group, old, range(group.size), self._tree, self.start_timeout, self._monitor)
        everyone = self._groups.all()
        stored = ray.put(list(everyone))
        connecting = {other.name: [self._connect(member, stored) for member in other.members] for other in everyone}
        # The other groups need no wait: their actors run this before any later call.
        self._wait_for([member.node for member in group.members], connecting[name])
        catch_up(self._groups, group, old.created, self.start_timeout)

    def _lost(self) -> Mapping[str, str]:
        """The reasons of the lost nodes by node id."""
        return {} if self._monitor is None else self._monitor.all_lost()

    def _add_agents(self, group: RayGroup) -> None:
        """Start agents on the nodes that a restart has added, and leave out those of lost nodes."""
        here = ray.get_runtime_context().get_node_id()
        lost = self._lost()
        if self._tree is not None:
            for node in lost:
                self._tree.lose_node(node)
        added = {member.node for member in group.members} - self._agents.keys()
        if not self._agents:
            added |= {here, *(member.node for one in self._groups.all() for member in one.members)}
        if not added or (not self._agents and len(added) == 1):
            return
        connecting = start_agents(sorted(added), self._agents, lost)
        self._wait_for(sorted(added), [connecting.pop(node) for node in sorted(added)])
        if connecting:
            ray.wait([*connecting.values()], num_returns=len(connecting), timeout=_OTHER_AGENTS)
        report_to_agents(self._agents, lost)
        self._groups.take_agent(self._agents[here])

    @property
    def can_restart(self) -> bool:
        """Whether `initialize` was given `restart="group"`."""
        return self._can_restart

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
        if self._logs is not None:
            self._logs.add_labels(actor_set.labels())
        self._groups.replace(group)
        reconnect_ranks(group, group, ranks, self._tree, self.start_timeout, self._monitor)
        everyone = self._groups.all()
        stored = ray.put(list(everyone))
        connecting = {
            (other.name, member.info.rank): self._connect(member, stored)
            for other in everyone
            for member in other.members
        }
        self._wait_for([group.members[rank].node for rank in ranks], [connecting[name, rank] for rank in ranks])
        created = {
            instance: {rank: made for rank, made in by_rank.items() if rank in ranks}
            for instance, by_rank in group.created.items()
        }
        catch_up(self._groups, group, {name: made for name, made in created.items() if made}, self.start_timeout)

    def group(self, name: str) -> RayGroup:
        """A group by name."""
        return self._groups.group(name)

    def wait(self, replies: Sequence[Reply], timeout: float | None) -> Sequence[Reply]:
        """Wait until at least one reply is done."""
        return self._groups.wait(replies, timeout)

    def when_done(self, reply: Reply, notify: Callable[[], None]) -> bool:
        """Call a function when a reply is done, in a thread of Ray."""
        return self._groups.when_done(reply, notify)

    def outcome(self, reply: Reply) -> Outcome:
        """The outcome of a reply that is done."""
        return self._groups.outcome(reply)

    def attached(self) -> Sequence[RayGroup]:
        """All groups: every worker is a process with calls of its own."""
        return self._groups.all()

    def records_of_workers(
        self, since: float, busy: Collection[tuple[str, int]]
    ) -> Mapping[Hashable, Sequence[CallRecord]]:
        """The metrics of the calls that workers made since then."""
        return self._records.ask(self._groups.all(), since, busy)

    def after_fork(self) -> bool:
        """Leave the cluster, and the connection to it, to the parent process."""
        return self._groups.after_fork()

    def close(self) -> None:
        """End every worker, free what was reserved, and end the cluster if this backend started it."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()
        if ray.is_initialized():
            self._end_logs()
            self._end_waiting()
            self._kill_all()
            self._free()
        self._leave_actors()
        self._offers.close()
        self._actor_sets, self._reservation, self._tree = {}, None, None
        self._cluster.close()
        forget_raylet()

    def _kill_all(self) -> None:
        for actor in [
            *(actor for actor_set in self._actor_sets.values() for actor in actor_set.actors),
            *self._agents.values(),
            *(() if self._tree is None else self._tree.agents),
        ]:
            ray.kill(actor, no_restart=True)

    def _leave_actors(self) -> None:
        """Let go of every handle: Ray takes none back when the cluster has ended, and keeps a connection for each."""
        for group in self._made.values():
            group.leave()
        for actor_set in self._actor_sets.values():
            actor_set.actors.clear()
        self._agents.clear()
        if self._tree is not None:
            self._tree.agents = ()

    def _free(self) -> None:
        """Free what was reserved; without the cluster's head this would hang."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None and self._reservation is not None:
            monitor.during(self._reservation.free)
        elif self._reservation is not None:
            self._reservation.free()
        if monitor is not None:
            monitor.close()

    def _end_logs(self) -> None:
        """Wait for the last lines of the workers that still answer."""
        logs, self._logs = self._logs, None
        if logs is None:
            return
        actors = [actor for actor_set in self._actor_sets.values() for actor in actor_set.actors]
        token = f"twinkle-end-{uuid.uuid4().hex}"
        ended = logs.expect(token, len(actors))  # before a worker can print it
        asked = [actor.end_output.remote(token) for actor in actors]
        if asked and ended is not None:
            answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_LAST_LINES)
            if len(answered) == len(asked):
                ended.wait(_LAST_LINES)
        logs.close()

"""The cost of one call: by node against one message for each rank, on real workers; and at 131,072 simulated ranks.

The first measures the same workers in both ways: the processor time of the driver's process, and the time until all
have answered. In the second the driver is real: it plans, sends its messages to the first agents through Ray, reads
their answers and collects the result. Simulated are these agents and all that is behind them: two actors stand for the
first agents and make the answers up, in the form and size of real ones. Its seconds are the driver's processor time,
and the measured time of a call by node to 8 real ranks for each of the three levels of the tree.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import ray

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray.by_node.agent_tree import AgentTree, agent_slots
from twinkle_ray.by_node.calls_by_node import CallsByNode
from twinkle_ray.by_node.choice import RANKS_OF_AGENT
from twinkle_ray.by_node.messages import NodeOutcomes
from twinkle_ray.by_node.tree import FAN_OUT
from twinkle_ray.objects.object_store import Inline
from twinkle_ray.objects.wire import outcomes_to_wire, task_from_wire
from twinkle_ray.workers.group import RayGroup
from twinkle_remote import Lazy
from twinkle_remote.call.start import start
from twinkle_remote.protocol import Outcome
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.component import Component, component_of
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.by_node.messages import NodeMessage
    from twinkle_ray.objects.wire import Wire

RANKS_OF_NODE = 8
LEVELS = 3  # of a tree of 16,384 nodes
CALLS = 20
ALL = FunctionSpec(dispatch="all")
ROWS = FunctionSpec(dispatch="slice_dp", collect="flatten")


@twinkle.remote_class()
class Small:
    """Does nothing."""

    @twinkle.remote_function(dispatch="all")
    def nothing(self) -> None:
        """Return nothing."""


class SimulatedAgent:
    """Stands for an agent and all that is behind it."""

    def run(self, number: int, message: NodeMessage) -> NodeOutcomes:
        """Answer for all ranks at once."""
        ranks: list[int] = []
        wires = []
        now = time.time()
        takes_rows = bool(task_from_wire(cast("Wire", message.nodes[0].wires[0])).args)
        made = Outcome(0, Inline(pickle.dumps([0], protocol=5)), 1, is_list=True) if takes_rows else Outcome(0)
        for tasks in message.nodes:
            ranks += tasks.ranks
            outcomes = [replace(made, rank=rank, started=now, seconds=1e-4) for rank in tasks.ranks]
            wires.append(outcomes_to_wire(outcomes))
        return NodeOutcomes(tuple(ranks), False, tuple(wires), (), ())


class SimulatedNodes:
    """A backend whose group has many ranks on nodes that are simulated."""

    def __init__(self, backend: Any, group: RayGroup) -> None:
        self._backend, self._group = backend, group
        self.store, self.wait, self.outcome = backend.store, backend.wait, backend.outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def group(self, name: str) -> RayGroup:
        """The large group."""
        return self._group


def compare(counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Costs of an empty call on the first workers of one group, in both ways."""
    figures: dict[tuple[int, str], tuple[float, float]] = {}
    with twinkle.session("ray", groups=[DeviceGroup("ranks", max(counts), "CPU")], calls="by_node"):
        handle = twinkle.on("ranks").create(Small)
        whole = component_of(handle)
        assert whole is not None
        group: Any = running().backend.group("ranks")
        ways = {"direct": None, "by_node": group.by_node}
        for _ in range(rounds):
            for count in counts:
                component = replace(whole, ranks=tuple(range(count)))
                for way, sender in ways.items():
                    group.by_node = sender
                    figures[count, way] = min(figures.get((count, way), (1e9, 1e9)), _cost(component))
    return [
        {"mode": "ray", "simulated": False, "name": f"call, {way}", "ranks": count}
        | {"seconds": wall, "driver_seconds": driver}
        for (count, way), (driver, wall) in figures.items()
    ]


def _cost(component: Component) -> tuple[float, float]:
    """Processor time of the driver, and the time of a call."""
    _call(component, "nothing", ALL).result()
    began, own = time.perf_counter(), time.process_time()
    for _ in range(CALLS):
        _call(component, "nothing", ALL).result()
    return (time.process_time() - own) / CALLS, (time.perf_counter() - began) / CALLS


def _call(component: Component, method: str, spec: FunctionSpec, *args: Any) -> Lazy[Any]:
    names = ["rows"] * len(args)
    return Lazy(start(Call("method", component, method, f"Small.{method}", spec, "here", names, args)))


def simulate(ranks: int, rounds: int) -> list[dict[str, Any]]:
    """Costs of one call on simulated ranks: without arguments, and with rows for each data rank."""
    with twinkle.session("ray", groups=[DeviceGroup("ranks", RANKS_OF_NODE, "CPU")], calls="by_node"):
        handle = twinkle.on("ranks").create(Small)
        component = component_of(handle)
        assert component is not None
        level = min(_cost(component)[1] for _ in range(rounds))
        runtime, real = running(), running().backend
        small: Any = real.group("ranks")
        member = small.members[0]
        members = [
            replace(member, info=replace(member.info, rank=rank, size=ranks), node=f"node {rank // RANKS_OF_NODE}")
            for rank in range(ranks)
        ]
        group = RayGroup("ranks", members, is_driver=True)
        group.waiting, group.agents, group.labels = small.waiting, small.agents, small.labels
        places = agent_slots([one.node for one in members], RANKS_OF_AGENT)
        actor_class: Any = ray.remote(SimulatedAgent)
        agents = [actor_class.options(num_cpus=0).remote() for _ in range(2)]
        nodes = list(dict.fromkeys(places))
        group.by_node = CallsByNode(group, AgentTree(nodes, agents * (len(nodes) // 2), FAN_OUT), places)
        mesh = DeviceMesh.from_sizes(dp_size=ranks // RANKS_OF_NODE, tp_size=RANKS_OF_NODE)
        wide = replace(component, ranks=tuple(range(ranks)), mesh=mesh)
        rows = list(range(ranks // RANKS_OF_NODE))
        best: dict[str, tuple[float, float]] = {}
        backend: Any = SimulatedNodes(real, group)
        for _ in range(rounds):
            for name, spec, args in (("without arguments", ALL, ()), ("rows by data rank", ROWS, (rows,))):
                runtime.backend = backend
                began, own = time.perf_counter(), time.process_time()
                value = _call(wide, "nothing", spec, *args).result()
                found = time.process_time() - own, time.perf_counter() - began
                runtime.backend = real
                assert len(value) == (ranks if name == "without arguments" else len(rows))
                best[name] = min(best.get(name, found), found)
    return [
        {"mode": "ray", "simulated": True, "name": f"call by node, {name}", "ranks": ranks}
        | {"seconds": driver + LEVELS * level, "driver_seconds": driver, "wall_seconds": wall}
        for name, (driver, wall) in best.items()
    ]

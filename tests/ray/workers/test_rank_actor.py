"""What an actor keeps of its components."""

from __future__ import annotations

from twinkle_mesh import DeviceMesh
from twinkle_ray.objects.wire import outcome_from_wire, task_to_wire
from twinkle_ray.workers.rank_actor import RankActor
from twinkle_remote.backends.support import Memory, Worker
from twinkle_remote.protocol import Task, WorkerInfo


class Component:
    """Nothing."""


def test_a_released_component_leaves_nothing() -> None:
    actor = RankActor()
    actor.info = WorkerInfo("actor", 1, 2)
    actor.worker = Worker(actor.info, Memory())
    mesh = DeviceMesh.from_sizes(dp_size=2)
    for task in (Task("create", "one", "Component.__init__", Component, mesh=mesh), Task("drop", "one", "drop", None)):
        wire, _ = task_to_wire(task)
        assert isinstance(wire, bytes) and outcome_from_wire(actor.run(wire)).failure is None
        assert actor.places == ({"one": {"dp": 1}} if task.kind == "create" else {})

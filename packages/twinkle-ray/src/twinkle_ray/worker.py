"""The process of one rank, as a Ray actor: it is given its rank after all of its group have told where they are."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle

from twinkle_ray.store import RayStore
from twinkle_ray.wire import outcome_from_wire, outcome_to_wire, task_from_wire
from twinkle_remote.backends.memory import seed_process
from twinkle_remote.failure import WorkerInfo, capture, pickle_with
from twinkle_remote.protocol import Outcome
from twinkle_remote.runtime import attach
from twinkle_remote.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.wire import Wire
    from twinkle_remote.protocol import Task


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an actor runs, told before it has a rank.

    Attributes:
        node_id: Ray's id of the node.
        host: Name of the host.
        address: IP address by which other nodes reach it.
        pid: Process id.
        devices: Devices that Ray gave it, by their index on the node.
        visible: What the variable for device visibility says.
    """

    node_id: str
    host: str
    address: str
    pid: int
    devices: tuple[str, ...] = ()
    visible: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """What an actor becomes.

    Attributes:
        group: Name of its group.
        rank: Its rank.
        size: Number of workers of the group.
        seed: Seed of the process.
        environment: Variables to set.
        paths: Directories of the driver's modules.
    """

    group: str
    rank: int
    size: int
    seed: int
    environment: Mapping[str, str] = field(default_factory=dict)
    paths: Sequence[str] = ()


def visibility_variable(kind: str) -> str | None:
    """The variable that says which devices of a type a process sees; None where Ray knows of none."""
    manager = import_module("ray._private.accelerators").get_accelerator_manager_for_resource(kind)
    return None if manager is None else str(manager.get_visible_accelerator_ids_env_var())


class RankActor:
    """One rank."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._info = WorkerInfo("", 0, 0)
        self._port: socket.socket | None = None
        self._remembered = b""

    def seat(self, kind: str, named: Sequence[int] | None) -> Seat:
        """Where this process runs, and with which devices.

        Args:
            kind: Type of its group's devices.
            named: Indices of devices that are to be its own beside the one that Ray gave it.
        """
        context = ray.get_runtime_context()
        variable = visibility_variable(kind)
        devices = [str(index) for index in context.get_accelerator_ids().get(kind, ())]
        if named is not None and set(devices) <= set(map(str, named)):
            devices = [str(index) for index in named]
            if variable is not None:
                os.environ[variable] = ",".join(devices)
        return Seat(
            context.get_node_id(),
            socket.gethostname(),
            str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]  # Ray's own gap
            os.getpid(),
            tuple(devices),
            None if variable is None else os.environ.get(variable),
        )

    def hold_port(self) -> int:
        """A port of this host that stays bound: only a server that reuses addresses, as torch's does, can take it."""
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        self._port = held
        return int(held.getsockname()[1])

    def begin(self, role: Role) -> None:
        """Take a rank."""
        os.environ.update(role.environment)
        sys.path.extend(path for path in role.paths if path not in sys.path)
        seed_process(role.seed)
        pickle_with(cloudpickle.dumps)
        self._info = WorkerInfo(role.group, role.rank, role.size, socket.gethostname(), os.getpid())
        self._worker = Worker(self._info, RayStore())

    def meet(self, groups: Sequence[Any]) -> None:
        """Get to know all groups, so that components here can call components there."""
        from twinkle_ray.group import RayGroups

        attach("ray", RayGroups(groups))

    def remember(self, wire: bytes) -> bytes | tuple[Any, ...]:
        """Run a task without inputs, and keep it for `again`."""
        self._remembered = wire
        return self.run(wire)

    def again(self) -> bytes | tuple[Any, ...]:
        """Run the task of the latest `remember`: a call without arguments is a third cheaper for Ray."""
        return self.run(self._remembered)

    def run(self, wire: Wire, *inputs: bytes | tuple[Any, ...]) -> bytes | tuple[Any, ...]:
        """Run one task."""
        assert self._worker is not None
        task: Task | None = None
        try:
            task = task_from_wire(wire)
            outcome = self._worker.run(task, [outcome_from_wire(given) for given in inputs])
        except BaseException as error:  # SystemExit would end the actor without a word of where it was raised
            name = task.name if task is not None else "reading the arguments of a call"
            failure = capture(error, self._info.label(), self._info, name, live=False)
            outcome = Outcome(self._info.rank, failure=failure)
        return outcome_to_wire(outcome)

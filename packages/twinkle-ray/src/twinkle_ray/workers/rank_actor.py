"""The Ray actor of one rank: it reports its location first, then it is assigned a rank, then it runs tasks.

Methods run in order on one thread, coroutines on a loop. What others ask meanwhile is answered on threads beside them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import ray

from twinkle_ray.objects import segments, tensors
from twinkle_ray.objects.object_store import RayStore
from twinkle_ray.objects.wire import UNREAD, outcome_to_wire, task_from_wire
from twinkle_ray.ray_internals import actor_name_marker, visibility_variable
from twinkle_ray.workers.core import RayGroups
from twinkle_ray.workers.loop_calls import Outcomes
from twinkle_remote.backends.support import (
    Worker,
    WorkerContext,
    attach,
    be_worker,
    begin_session,
    seed_process,
    user_stack,
)
from twinkle_remote.errors import BEFORE_IT_BEGAN, CallCancelledError
from twinkle_remote.protocol import Outcome, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.objects.wire import Wire
    from twinkle_ray.workers.group import RayGroup
    from twinkle_ray.workers.loop_calls import Numbered
    from twinkle_ray.workers.replies import OutcomeWire
    from twinkle_remote.protocol import Failure, SessionDefaults, Task, TaskTransfer


CONTROL, OUTCOMES, BESIDE = "control", "outcomes", "beside"
CONCURRENCY = ((CONTROL, 2), (OUTCOMES, 64), (BESIDE, 1))
"""Ray's concurrency groups of a worker, with their threads; methods have one more."""
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class WorkerLocation:
    """Where an actor runs, which it reports before it has a rank.

    Attributes:
        node_id: Ray's id of the node.
        host: Name of the host.
        address: IP address by which other nodes reach it.
        pid: Process id.
        devices: Devices that Ray gave it, as it names them: by their number on the host, or by CUDA's UUIDs.
        visible: What the variable for device visibility says.
        cores: CPU cores that the process may use.
        threads: OMP_NUM_THREADS, where it was set before the process started; Ray's own setting does not count.
        numbers: Of the devices among those of its node, in the same order; empty where they have none.
    """

    node_id: str
    host: str
    address: str
    pid: int
    devices: tuple[str, ...] = ()
    visible: str | None = None
    cores: int = 1
    threads: str | None = None
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """The assignment with which an actor becomes a rank of a group.

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


def first_environment() -> Mapping[str, str]:
    """The environment with which this process was started, before it changed any variable."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:  # no Linux
        return dict(os.environ)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}


def device_numbers(kind: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """The numbers of devices among those that their node counts, by Ray's names of them; None without numbers.

    A node that was started with some of its host's devices counts these, in the order and by the names that its
    variable has: "4,5", "GPU-8932f937,MIG-a1b2".
    """
    variable = visibility_variable(kind)
    if variable is None:
        return None
    seen = [name.strip() for name in first_environment().get(variable, "").split(",") if name.strip()]
    if seen and all(name in seen for name in names):
        return tuple(map(seen.index, names))
    return tuple(map(int, names)) if all(name.isdecimal() for name in names) else None


def name_output(label: str) -> None:
    """Have Ray print the lines of this process with a label from now on."""
    for stream in (sys.stdout, sys.stderr):
        print(f"{actor_name_marker()}{label}", file=stream, flush=True)


class _Worker(Worker):
    """A worker whose exceptions may be of classes that only `__main__` defines."""

    def _capture(self, error: BaseException, task: Task, context: WorkerContext) -> Failure:
        failure: Failure = super()._capture(error, task, context)
        from ray import cloudpickle

        from twinkle_remote.backends.support import error_to_bytes

        return replace(failure, pickled=error_to_bytes(error, cloudpickle.dumps) or failure.pickled)


class RankActor:
    """One rank.

    A caller sends it each task by `run`, by `start_on_loop` for a coroutine, or by `run_beside` for one that does not
    wait for the methods.

    Attributes:
        worker: Runs its tasks, once it has a rank.
        info: Its group, rank and node.
        places: Coordinate of each of its components.
    """

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.info = WorkerInfo("", 0, 0)
        self.places: dict[str, Mapping[str, int]] = {}
        self._port: socket.socket | None = None
        self._store: RayStore
        self._groups: RayGroups | None = None
        self._withdrawn: set[str] = set()
        self._outcomes: dict[str, Outcomes] = {}
        self._method_thread = 0
        self._runs = False
        if threading.current_thread() is threading.main_thread():  # the last time that something runs there
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler lets the method that runs go on to its end

    def locate(self, kind: str, named: Sequence[str] | None) -> WorkerLocation:
        """Report where this process runs, and on which devices.

        Args:
            kind: Type of its group's devices.
            named: Ray's ids of all its devices, where the group names them; Ray gave it one of these.
        """
        context = ray.get_runtime_context()
        variable = visibility_variable(kind)
        devices = [str(index) for index in context.get_accelerator_ids().get(kind, ())]
        if named is not None and set(devices) <= set(named):
            devices = [*named]
            if variable is not None:
                os.environ[variable] = ",".join(devices)
        return WorkerLocation(
            context.get_node_id(),
            socket.gethostname(),
            str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]  # Ray's own gap
            os.getpid(),
            tuple(devices),
            None if variable is None else os.environ.get(variable),
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            first_environment().get(THREADS),
            device_numbers(kind, devices) or (),
        )

    def hold_port(self) -> int:
        """Bind a port of this host, so that only a server that reuses addresses, such as torch's, can bind it."""
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        self._port = held
        return int(held.getsockname()[1])

    def assign_rank(self, assignment: RankAssignment) -> str:
        """Become a rank; return the `host_identity` of this process."""
        os.environ.update(assignment.environment)
        tensors.on_worker()
        sys.path.extend(path for path in assignment.paths if path not in sys.path)
        begin_session(assignment.seed)
        seed_process(assignment.seed)
        self.info = WorkerInfo(assignment.group, assignment.rank, assignment.size, socket.gethostname(), os.getpid())
        self._store = RayStore(self.info.label())
        self.worker = _Worker(self.info, self._store)
        be_worker(self.worker.outside_tasks)
        name_output(self.info.label())
        self._method_thread = threading.get_ident()
        return segments.host_identity()

    def connect(
        self,
        groups: Sequence[ray.ObjectRef[list[RayGroup]]],
        defaults: SessionDefaults,
        *,
        one_node: bool,
        shares: bool,
    ) -> None:
        """Connect this worker to all groups, whose components it may then call.

        Args:
            groups: One ref, of all groups; later again, after one was restarted. In a list Ray does not fetch it.
            defaults: The session's.
            one_node: All of the session is on this node.
            shares: All of its processes can share memory.
        """
        segments.allow(placing=shares)
        self._store.cuts = not one_node
        if self._groups is not None:
            self._groups.replace(groups[0])
        else:
            self._groups = RayGroups(groups[0], self._store)
            attach("ray", self._groups, defaults)

    def configure(self, defaults: SessionDefaults) -> None:
        """Take the defaults of the session, before the first call."""
        assert self._groups is not None
        attach("ray", self._groups, defaults)

    def run(self, wire: Wire, reads: TaskTransfer | None = None) -> OutcomeWire:
        """Run one task.

        Args:
            wire: The task.
            reads: What it reads of its lazy arguments; None if the task says it.
        """
        self._runs = True
        try:
            return _run_task(self, wire, reads)
        finally:
            self._runs = False

    @ray.method(concurrency_group=BESIDE)
    def run_beside(self, wire: Wire, reads: TaskTransfer | None = None) -> OutcomeWire:
        """Run one task while methods run, after earlier ones of this kind."""
        return _run_task(self, wire, reads)

    def start_on_loop(self, wire: Wire, caller: str, key: str, reads: TaskTransfer | None = None) -> None:
        """Start a task on the event loop.

        Args:
            wire: The task.
            caller: The process that asks for its outcome.
            key: Id of the task.
            reads: As for `run`.
        """
        outcomes = self._outcomes_of(caller)

        def answer(outcome: Outcome) -> None:
            outcomes.add(key, outcome_to_wire(outcome))

        task = None
        try:
            assert self.worker is not None
            task = task_from_wire(wire)
            self.worker.start(task, None, reads, key=key, answer=answer)
        except BaseException as error:  # SystemExit would end the actor, and its traceback would be lost
            answer(_failed(self, task, error))

    def _outcomes_of(self, caller: str) -> Outcomes:
        return self._outcomes.setdefault(caller, Outcomes())

    @ray.method(concurrency_group=OUTCOMES)
    def outcomes(self, caller: str, number: int) -> list[Numbered]:
        """Wait for outcomes of coroutines of a caller, which has those up to a number."""
        return self._outcomes_of(caller).after(number)

    @ray.method(concurrency_group=CONTROL)
    def alive(self) -> bool:
        """Answer."""
        return True

    @ray.method(concurrency_group=CONTROL)
    def cancel(self, key: str) -> None:
        """Cancel a task of the event loop."""
        if self.worker is not None:
            self.worker.loop.cancel(key)

    @ray.method(concurrency_group=CONTROL)
    def withdraw(self, task: str) -> None:
        """Do not begin a task, given by Ray's id of it."""
        self._withdrawn.add(task)

    def is_withdrawn(self) -> bool:
        """Whether the caller of the task that begins has cancelled it."""
        return bool(self._withdrawn) and ray.get_runtime_context().get_task_id() in self._withdrawn

    @ray.method(concurrency_group=CONTROL)
    def where(self, key: str) -> str | None:
        """Where a task of the event loop runs or waits; None if it has not begun or is done."""
        return None if self.worker is None else self.worker.loop.stack(key)

    @ray.method(concurrency_group=CONTROL)
    def stack(self) -> str:
        """Where the method is that runs."""
        frame = sys._current_frames().get(self._method_thread)
        return user_stack(frame) if self._runs and frame is not None else "it runs nothing: the call has not begun"


def _run_task(actor: RankActor, wire: Wire, reads: TaskTransfer | None) -> OutcomeWire:
    """Run one task; a function, because Ray wraps every method of an actor once more."""
    assert actor.worker is not None
    task = None
    try:
        task = task_from_wire(wire)
        if task.kind == "create":
            actor.places[task.instance] = WorkerContext(rank=actor.info.rank, mesh=task.mesh).coordinate
            name_output(actor.info.label(actor.places[task.instance]))
        elif task.kind == "drop":
            actor.places.pop(task.instance, None)
        if actor.is_withdrawn():
            raise CallCancelledError(BEFORE_IT_BEGAN)
        outcome = actor.worker.run(task, None, reads)
    except BaseException as error:  # SystemExit would end the actor, and its traceback would be lost
        outcome = _failed(actor, task, error)
    return outcome_to_wire(outcome)


def _failed(actor: RankActor, task: Task | None, error: BaseException) -> Outcome:
    """The outcome of a task that was not read, or whose end no worker reports."""
    from twinkle_remote.backends.support import capture  # most workers have no failure

    label = actor.info.label(None if task is None else actor.places.get(task.instance))
    name = UNREAD if task is None else task.name
    return Outcome(actor.info.rank, failure=capture(error, label, actor.info, name, live=False))

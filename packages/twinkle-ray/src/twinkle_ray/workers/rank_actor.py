"""The Ray actor of one rank: it reports its location first, then it is assigned a rank, then it runs tasks."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.forkserver.forked import take_threads
from twinkle_ray.objects import tensors
from twinkle_ray.objects.object_store import RayStore
from twinkle_ray.objects.shared_memory import placed
from twinkle_ray.objects.wire import UNREAD, outcome_from_wire, outcome_to_wire, task_from_wire
from twinkle_ray.ray_internals import visibility_variable
from twinkle_ray.replies.withdrawn import Withdrawn
from twinkle_ray.telemetry.whole_lines import end_output, name_output, print_by_line
from twinkle_ray.workers.loop_calls import LoopCalls
from twinkle_ray.workers.shown_waits import ShownWait
from twinkle_ray.workers.stack_dump import offer_stack
from twinkle_ray.workers.worker_backend import WorkerBackend
from twinkle_remote.backends.support import Worker, WorkerContext, attach, be_worker, seed_process
from twinkle_remote.errors import BEFORE_IT_BEGAN, CallCancelledError
from twinkle_remote.protocol import Outcome, WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_ray.objects.shared_memory.placed import MemoryOffer
    from twinkle_ray.objects.wire import Wire
    from twinkle_ray.workers.group import RayGroup
    from twinkle_remote.protocol import Failure, HandedShare, SessionDefaults, Task


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


class _Worker(Worker):
    """A worker that shows what it waits for; its exceptions may be of classes that only `__main__` defines."""

    def __init__(self, info: WorkerInfo, store: RayStore) -> None:
        super().__init__(info, store)
        self._shown = ShownWait()

    def show_waits(self) -> None:
        """Show what its tasks wait for to other processes of the node."""
        self._shown.show(lambda: self.waits)

    def _capture(self, error: BaseException, task: Task, context: WorkerContext) -> Failure:
        failure: Failure = super()._capture(error, task, context)
        from twinkle_ray.objects.error_by_value import ErrorByValue
        from twinkle_remote.backends.support import error_to_bytes

        return replace(failure, pickled=error_to_bytes(error, ErrorByValue) or failure.pickled)


class RankActor(LoopCalls):
    """One rank.

    A caller sends it each task by one of five methods: `run`; `run_with_inputs` for lazy arguments; `run_and_cache` and
    then `run_cached` for one that the driver repeats; `start_on_loop` of `LoopCalls` for one of the event loop.

    Attributes:
        worker: Runs its tasks, once it has a rank.
        info: Its group, rank and node.
        places: Coordinate of each of its components.
        withdrawn: Its tasks that callers have cancelled, once it has a rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self.worker: Worker | None = None
        self.info = WorkerInfo("", 0, 0)
        self._port: socket.socket | None = None
        self._cached_wire = b""
        self._cached_task: Task | None = None
        self.places: dict[str, Mapping[str, int]] = {}
        self._store: RayStore
        self._groups: WorkerBackend | None = None
        self.withdrawn: Withdrawn | None = None

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

    def assign_rank(self, assignment: RankAssignment) -> int:
        """Become a rank; return the descriptor of this process's stack."""
        os.environ.update(assignment.environment)
        take_threads()
        tensors.on_worker()
        sys.path.extend(path for path in assignment.paths if path not in sys.path)
        seed_process(assignment.seed)
        self.info = WorkerInfo(assignment.group, assignment.rank, assignment.size, socket.gethostname(), os.getpid())
        self._store = RayStore(self.info.label())
        self.worker = _Worker(self.info, self._store)
        be_worker(self.worker.outside_tasks)
        self.withdrawn = Withdrawn()
        print_by_line()
        name_output(self.info.label())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler raises SystemExit in whatever runs, which goes on
        return offer_stack()

    def connect(
        self,
        groups: Sequence[ray.ObjectRef[list[RayGroup]]],
        agent: Any,
        defaults: SessionDefaults,
        offer: MemoryOffer,
    ) -> bool:
        """Connect this worker to all groups, whose components it may then call, and to the agent of its node.

        Args:
            groups: One ref, of all groups; later again, after one was restarted. In a list Ray does not fetch it.
            agent: The agent; None where there is one node.
            defaults: The session's.
            offer: How it shares memory with the driver.

        Returns:
            Whether it may open the driver's memory.
        """
        self._store.agent = agent
        if agent is not None and self._store.lost_nodes is None:
            from twinkle_ray.workers.lost_node_poller import LostNodePoller  # where there are several nodes

            self._store.lost_nodes = LostNodePoller(agent)
        placed.allow(placing=offer.placing)
        if self._groups is not None:
            self._groups.replace(groups[0], agent)
        else:
            self._groups = WorkerBackend(groups[0], self._store, agent)
            attach("ray", self._groups, defaults)
        return offer.driver is None or placed.may_open(*offer.driver)

    def configure(self, defaults: SessionDefaults) -> None:
        """Take the defaults of the session, before the first call."""
        assert self._groups is not None
        attach("ray", self._groups, defaults)

    def end_output(self, token: str) -> None:
        """Print a token after everything that this worker has printed."""
        end_output(token)

    def run_and_cache(self, wire: bytes) -> bytes | tuple[Any, ...]:
        """Run a task without inputs, and cache it for `run_cached`."""
        self._cached_wire, self._cached_task = wire, None
        return _run_task(self, wire)

    def run_cached(self) -> bytes | tuple[Any, ...]:
        """Run the task of the latest `run_and_cache`: a call without arguments is cheaper for Ray."""
        if self._cached_task is None:
            task = task_from_wire(self._cached_wire)
            if task.args or task.kwargs:  # arguments are a call's own, and opened anew
                return _run_task(self, self._cached_wire)
            self._cached_task = task
        return _run_task(self, self._cached_wire, task=self._cached_task)

    def run(self, wire: Wire, *inputs: bytes | tuple[Any, ...]) -> bytes | tuple[Any, ...]:
        """Run one task."""
        return _run_task(self, wire, inputs)

    def run_concurrent(self, caller: str, worker: str) -> None:
        """From now on, run tasks of a caller's input waiter while the main thread runs others.

        Args:
            caller: The process whose input waiter it is; it has met this worker.
            worker: Id of this worker there.
        """
        from twinkle_ray.workers.concurrent_tasks import ConcurrentTasks  # few callers make such calls

        ConcurrentTasks(self.waiters[caller], worker, lambda wire: _run_task(self, wire)).start()

    def run_with_inputs(self, wire: Wire, answer: HandedShare | bytes | tuple[Any, ...]) -> bytes | tuple[Any, ...]:
        """Run one task with the reply of an input waiter: what it reads of its lazy arguments, or a failure."""
        from twinkle_remote.protocol import HandedShare  # no call without lazy arguments needs it

        if isinstance(answer, HandedShare):
            return _run_task(self, wire, given=answer)
        return _run_task(self, wire, [answer])


def _run_task(
    actor: RankActor,
    wire: Wire,
    inputs: Sequence[bytes | tuple[Any, ...]] = (),
    task: Task | None = None,
    given: HandedShare | None = None,
) -> bytes | tuple[Any, ...]:
    """Run one task; a function, because Ray wraps every method of an actor once more."""
    assert actor.worker is not None
    try:
        if task is None:
            task = task_from_wire(wire)
        if task.kind == "create":
            actor.places[task.instance] = WorkerContext(rank=actor.info.rank, mesh=task.mesh).coordinate
            name_output(actor.info.label(actor.places[task.instance]))
        elif task.kind == "drop":
            actor.places.pop(task.instance, None)
        if actor.withdrawn is not None and actor.withdrawn.has(ray.get_runtime_context().get_task_id()):
            raise CallCancelledError(BEFORE_IT_BEGAN)
        outcome = actor.worker.run(task, [outcome_from_wire(source) for source in inputs], given)
    except BaseException as error:  # SystemExit would end the actor, and its traceback would be lost
        from twinkle_remote.backends.support import capture

        name = UNREAD if task is None else task.name
        label = actor.info.label(None if task is None else actor.places.get(task.instance))
        outcome = Outcome(actor.info.rank, failure=capture(error, label, actor.info, name, live=False))
    return outcome_to_wire(outcome)

"""The worker of every backend: it runs a task and returns an outcome, also if the task raises."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.alive_lazies import any_lazy
from twinkle_remote.context import WorkerContext, caller, working_as
from twinkle_remote.errors import CallCancelledError, CollectError, DispatchError, NotInitializedError, PlacementError
from twinkle_remote.failures.ends import EndedError
from twinkle_remote.protocol.component import is_component_type
from twinkle_remote.protocol.marks import execute_of, options_of
from twinkle_remote.protocol.messages import Itself, Outcome
from twinkle_remote.protocol.targets import attribute_at, call_target
from twinkle_remote.running import RUNNING, be_task_of_loop, turn_of
from twinkle_remote.sessions.current import report_calls, saving_here
from twinkle_remote.sessions.signals.flag import Flag
from twinkle_remote.values.columns import columns, is_numbered
from twinkle_remote.values.costs import costs_of
from twinkle_remote.values.rows import PLAIN, counted_rows, holds_marks, rows_of
from twinkle_remote.values.unknown import runs_once
from twinkle_remote.worker import thread_state
from twinkle_remote.worker.failure_saver import FailureSaver
from twinkle_remote.worker.inputs import TaskInputs
from twinkle_remote.worker.loop_tasks import LoopTasks
from twinkle_remote.worker.open_generators import OpenGenerators
from twinkle_remote.worker.waiting_tasks import WaitingTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator, MutableMapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import Failure, WorkerInfo
    from twinkle_remote.protocol.handed import HandedShare
    from twinkle_remote.protocol.messages import Task
    from twinkle_remote.worker.loop_task import LoopTask

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_STREAMS = (GeneratorType, AsyncGeneratorType, CoroutineType)
GRACE_SECONDS = 1.0
_SLICE_SECONDS = 0.25  # between two looks for a signal


class Worker(WaitingTasks):
    """The components of one rank.

    Args:
        info: Identity of this worker.
        store: Store for stored and lazy arguments and for results.
        live: The driver shares this process: exceptions are not pickled.
        shared: The caller's values are in this process, and are copied; None follows `live`.
        instances: Mapping that holds the components; by default as long as the worker exists.

    Attributes:
        info: As given.
        loop: Its event loop.
    """

    def __init__(
        self,
        info: WorkerInfo,
        store: Store,
        *,
        live: bool = False,
        shared: bool | None = None,
        instances: MutableMapping[str, Any] | None = None,
    ) -> None:
        super().__init__(info, LoopTasks(info.label()))
        self._store = store
        self._live = live
        self._shared = live if shared is None else shared
        self._instances: MutableMapping[str, Any] = {} if instances is None else instances
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._iterators: dict[str, Iterator[Any]] = {}
        self._generators = OpenGenerators()
        self._saver = FailureSaver(info)

    def run(self, task: Task, inputs: Sequence[Outcome] = (), given: HandedShare | None = None) -> Outcome:
        """Run one task to its end.

        Args:
            task: The task.
            inputs: Outcomes that the task's lazy arguments read; a failure among them ends the task.
            given: What the task reads of them, where that was planned for all tasks together; None if the task says
                it, or if it is planned here.

        Returns:
            The outcome; it holds the failure if an `Exception` was raised.
        """
        if task.on_loop:
            return self._run_on_loop(task, inputs, given)
        context = self._context_of(task)
        outcome = self._opened_outcome(inputs)
        if outcome.failure is not None:
            return outcome
        token = RUNNING.set(self)
        called: _Arguments | None = None
        try:
            called = args, kwargs = self._arguments(task, inputs, given, outcome)
            with working_as(context), nullcontext() if task.concurrent else turn_of(self, task.name):
                self._finish(task, outcome, self._perform(task, args, kwargs))
        except EndedError:
            outcome.ended = True
        except Exception as error:  # every exception of a user's method becomes an outcome
            outcome.failure = self._failed(error, task, context, called)
        finally:
            RUNNING.reset(token)
        outcome.seconds = time.time() - outcome.started
        return outcome

    def start(
        self,
        task: Task,
        inputs: Sequence[Outcome] = (),
        given: HandedShare | None = None,
        *,
        key: Hashable,
        answer: Callable[[Outcome], object],
        grace: float = GRACE_SECONDS,
    ) -> None:
        """Start a task with `on_loop` on this worker's event loop; returns when its arguments are read.

        Args:
            task: The task.
            inputs: As for `run`.
            given: As for `run`.
            key: Id of the task, for `loop.cancel` and `loop.stack`.
            answer: Called once with the outcome, on any thread.
            grace: Seconds beyond the task's own: its caller cancels at the deadline, if it waits.
        """
        from twinkle_remote.worker.loop_task import LoopTask  # loads asyncio: half of this package's import time

        context = self._context_of(task)
        outcome = self._opened_outcome(inputs)
        if outcome.failure is not None:
            answer(outcome)
            return
        token = RUNNING.set(self)
        try:
            called = self._arguments(task, inputs, given, outcome)
            work = self._work(task, *called)
            places = None if task.kind == "close" else self.loop.places(task.instance, self._instance(task))
            with working_as(context):
                seen = copy_context()
            seen.run(be_task_of_loop, self, task.name, key)
        except Exception as error:  # as in `run`
            outcome.failure = self._capture(error, task, context)
            answer(outcome)
            return
        finally:
            RUNNING.reset(token)

        def finish(value: Any) -> None:
            self._finish(task, outcome, value)

        def capture_error(error: BaseException) -> Failure:
            return self._failed(error, task, context, called)

        generator = None if task.kind == "method" else self._generators.found(task.target)
        running = LoopTask(
            outcome, places, work, finish, capture_error, answer, state=thread_state.read(), name=task.name
        )
        limit = None if task.seconds is None else task.seconds + grace
        self.loop.start(key, running, seen, limit, generator)

    def _work(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[LoopTask], Awaitable[Any]]:
        """The user's part of a task of the event loop."""
        if task.kind == "item":
            return lambda running: self._generators.advance_async(task.target, running)
        if task.kind == "close":
            return lambda running: self._generators.close_async(task.target)
        instance = self._instance(task)

        async def called(running: LoopTask) -> Any:
            async with running.begun():
                value = await call_target(instance, task.target, args, kwargs)
            return Itself.ITSELF if value is instance else value

        return called

    def _run_on_loop(self, task: Task, inputs: Sequence[Outcome], given: HandedShare | None) -> Outcome:
        """Run a task of the event loop to its end; an interrupt cancels it."""
        found: list[Outcome] = []
        answered = Flag()  # a signal may come at any step of the wait

        def answer(outcome: Outcome) -> None:
            found.append(outcome)
            answered.set()

        self.start(task, inputs, given, key=answered, answer=answer, grace=0.0)
        try:
            while not answered.wait(_SLICE_SECONDS):
                pass
        except KeyboardInterrupt:
            self.loop.cancel(answered)
            raise
        return found[0]

    def _context_of(self, task: Task) -> WorkerContext:
        if task.kind == "create":
            return self._context(task.mesh, alone=_runs_alone(task.target))
        instance = self._instances.get(task.instance)
        alone = self.info.size > 1 and instance is not None and _runs_alone(type(instance), task.target)
        return self._context(self._meshes.get(task.instance), alone=alone)

    def outside_tasks(self) -> WorkerContext:
        """The place of code of this worker that no task runs; its mesh is that of all components, if they have one."""
        meshes = set(self._meshes.values())
        return self._context(meshes.pop() if len(meshes) == 1 else None)

    def _opened_outcome(self, inputs: Sequence[Outcome]) -> Outcome:
        """An outcome that begins now, with the first failure among the inputs."""
        outcome = Outcome(self.info.rank, started=time.time())
        failures = (source.failure for source in inputs if source.failure is not None)
        outcome.failure = next((failure.as_upstream() for failure in failures), None)
        return outcome

    def _arguments(
        self, task: Task, inputs: Sequence[Outcome], given: HandedShare | None, outcome: Outcome
    ) -> _Arguments:
        """Fetch the arguments of a task; the outcome takes their metrics."""
        if task.splitters is not None:
            task.splitters.register_here()
        given = given or task.pieces
        if given is None and task.handed:
            from twinkle_remote.call.tables.hand_over import plan_for_task  # no call without lazy arguments needs it

            given = plan_for_task(task, inputs)
        arguments = TaskInputs(task, given, self._store)
        args, kwargs = arguments.values()
        if self._shared and (args or kwargs):
            from twinkle_remote.values.snapshot import snapshot  # workers in processes of their own do without

            args, kwargs = snapshot((args, kwargs))
        outcome.fetched, outcome.fetched_columns = arguments.fetched, arguments.fetched_columns
        outcome.rows_given, outcome.total = arguments.rows, arguments.total
        outcome.counted = counted_rows((*args, *kwargs.values()))
        outcome.numbers = arguments.numbers if task.in_order else None
        began, outcome.started = outcome.started, time.time()
        outcome.fetch_seconds = outcome.started - began
        return args, kwargs

    def adopt(self, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Register a component that was built elsewhere in this process; False if it lacks weak references.

        Raises:
            PlacementError: Another component has this id.
        """
        self._check_free(instance)
        try:
            self._instances[instance] = value
        except TypeError:  # a class with __slots__ and no __weakref__
            return False
        self._meshes[instance] = mesh
        return True

    def holds(self, component: Component) -> bool:
        """Whether this worker holds the component."""
        return component.group == self.info.group and component.instance in self._instances

    def call(
        self, component: Component, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of a component on this worker directly, from a method of another component."""
        with working_as(self._context(self._meshes.get(component.instance), alone=caller().alone)):
            return function(self._instances[component.instance], *args, **kwargs)

    def _context(self, mesh: DeviceMesh | None, *, alone: bool = False) -> WorkerContext:
        return WorkerContext(self.info.group, self.info.rank, self.info.size, mesh, alone)

    def _finish(self, task: Task, outcome: Outcome, value: Any) -> None:
        try:
            self._take_result(task, outcome, _without_lazies(value) if any_lazy() else value)
        except RecursionError:
            raise CollectError(f"the result of {task.name}, a {type(value).__name__}, contains itself") from None

    def _take_result(self, task: Task, outcome: Outcome, value: object) -> None:
        if isinstance(value, _STREAMS) or runs_once(type(value)):
            raise CollectError(
                f"{task.name} returned a {type(value).__name__}, which cannot be collected; return a list, or give the "
                "class __iter__ and __next__"
            )
        if task.adds is not None:
            from twinkle_remote.values.wanted_columns import added  # as in `_arguments`

            value = added(value, task.adds)
        if type(value) not in PLAIN:
            try:
                columns_unknown = task.columns_unknown and isinstance(value, tuple) and columns(value) is None
                outcome.rows = None if columns_unknown else rows_of(value, "result")
            except DispatchError:  # columns of different lengths: a later call cannot split them
                outcome.rows = None
            outcome.is_list, outcome.numbered = isinstance(value, list), is_numbered(value)
            outcome.whole_columns, outcome.is_dict = not holds_marks(type(value)), type(value) is dict
            outcome.costs = costs_of(value)
        if self._shared:
            from twinkle_remote.values.snapshot import snapshot  # as in `_arguments`

            value = snapshot(value, keep=True)
        outcome.payload, outcome.produced = self._store.keep(value, eager=task.eager)

    def _capture(self, error: BaseException, task: Task, context: WorkerContext) -> Failure:
        from twinkle_remote.failures.capture import capture  # most workers have no failure

        return capture(error, self.info.label(context.coordinate), self.info, task.name, live=self._live)

    def _failed(self, error: BaseException, task: Task, context: WorkerContext, called: _Arguments | None) -> Failure:
        """The failure of a call that was made; on request it is saved."""
        failure, saving = self._capture(error, task, context), saving_here()
        if saving is None or called is None or task.kind not in ("create", "method"):
            return failure
        if not isinstance(error, Exception) or isinstance(error, CallCancelledError):
            return failure
        return replace(failure, note=self._saver.save(saving, task, failure, *called))

    def _check_free(self, instance: str) -> None:
        if instance in self._instances:
            raise PlacementError(f"instance_id={instance!r} is taken on group {self.info.group!r}: give another one")

    def _perform(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = task.instance
        if task.kind == "report":
            return report_calls(task.target)
        if task.kind == "create":
            self._check_free(name)
            self._meshes[name] = task.mesh
            if saving_here() is not None:
                self._saver.constructs(name, task.target, args, kwargs, task.mesh)
            self._instances[name] = task.target(*args, **kwargs)
            return None
        if task.kind == "drop":
            for held in (self._instances, self._meshes, self._iterators):
                held.pop(name, None)
            self._saver.dropped(name)
            self._generators.drop(name)
            self.loop.drop(name)
            if not self._live:
                gc.collect()  # its objects may be in reference cycles
            return None
        if task.kind == "item":
            return self._generators.advance(task.target)
        if task.kind == "close":
            return self._generators.close(task.target)
        instance = self._instance(task)
        if task.kind == "function":
            return task.target(instance, *args, **kwargs)
        if task.kind == "iterate":
            iterator = iter(instance)
            self._iterators[name] = iterator
            return iterator is instance
        if task.kind == "next":
            return self._next(name, self._iterators.get(name, instance))
        if task.kind == "generate":
            method, key = task.target
            return self._generators.open(name, key, call_target(instance, method, args, kwargs))
        value = call_target(instance, task.target, args, kwargs)
        return Itself.ITSELF if value is instance else value

    def _next(self, name: str, iterator: Iterator[Any]) -> Any:
        try:
            return next(iterator)
        except StopIteration:
            self._iterators[name] = iter(())  # a step that was requested ahead ends too
            raise EndedError from None

    def _instance(self, task: Task) -> Any:
        try:
            return self._instances[task.instance]
        except KeyError:
            raise NotInitializedError(
                f"{task.name}: {self.info.label()} holds no {task.instance!r}: it was released, or built before a "
                "shutdown; build it again"
            ) from None


def _runs_alone(cls: type, target: object = None) -> bool:
    """Whether the first worker alone holds objects of a class, or runs the method of that target."""
    if is_component_type(cls) and execute_of(cls) == "first":
        return True
    name = target[0] if isinstance(target, tuple) else target  # a generator's is its name and its id
    options = options_of(attribute_at(cls, name)) if isinstance(name, str) else None
    return options is not None and options.execute == "first"


def _without_lazies(value: Any) -> Any:
    from twinkle_remote.call.lazy_values.get import replace_lazy  # most workers have no lazy result
    from twinkle_remote.call.lazy_values.lazy import Lazy

    return replace_lazy(value, Lazy.result)

"""The worker of every backend: it runs a task and returns an outcome, also if the task raises."""

from __future__ import annotations

import gc
import time
from contextvars import ContextVar
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.get import replace_lazy
from twinkle_remote.call.hand_over import plan_for_task
from twinkle_remote.call.lazy import Lazy
from twinkle_remote.context import WorkerContext, working_as
from twinkle_remote.errors import CollectError, DispatchError, NotInitializedError, PlacementError
from twinkle_remote.failures.capture import capture
from twinkle_remote.protocol.messages import Itself, Outcome
from twinkle_remote.sessions.runtime import report_calls
from twinkle_remote.values.rows import PLAIN, rows_of
from twinkle_remote.values.snapshot import snapshot
from twinkle_remote.worker.inputs import TaskInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.handed import HandedShare
    from twinkle_remote.protocol.messages import Task

_STREAMS = (GeneratorType, AsyncGeneratorType, CoroutineType)
_running: ContextVar[Worker | None] = ContextVar("twinkle_running_worker", default=None)


class Worker:
    """The components of one rank.

    Args:
        info: Identity of this worker.
        store: Store for stored and lazy arguments and for results.
        live: The driver shares this process: exceptions are not pickled.
        shared: The caller's values are in this process, and are copied; None follows `live`.
        instances: Mapping that holds the components; by default as long as the worker exists.
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
        self.info = info
        self._store = store
        self._live = live
        self._shared = live if shared is None else shared
        self._instances: MutableMapping[str, Any] = {} if instances is None else instances
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._iterators: dict[str, Iterator[Any]] = {}

    def run(self, task: Task, inputs: Sequence[Outcome] = (), given: HandedShare | None = None) -> Outcome:
        """Run one task.

        Args:
            task: The task.
            inputs: Outcomes that the task's lazy arguments read; a failure among them ends the task.
            given: What the task reads of them, where that was planned for all tasks together; None if the task says
                it, or if it is planned here.

        Returns:
            The outcome; it holds the failure if an `Exception` was raised.
        """
        context = self._context(task.mesh if task.kind == "create" else self._meshes.get(task.instance))
        began = time.time()
        outcome = Outcome(self.info.rank, started=began)
        for source in inputs:
            if source.failure is not None:
                outcome.failure = source.failure.as_upstream()
                return outcome
        token = _running.set(self)
        try:
            if task.taught is not None:
                task.taught.learn()
            given = given or task.pieces or (plan_for_task(task, inputs) if task.handed else None)
            arguments = TaskInputs(task, given, self._store)
            args, kwargs = arguments.values()
            if self._shared:
                args, kwargs = snapshot(args), snapshot(kwargs)
            outcome.fetched, outcome.rows_given, outcome.total = arguments.fetched, arguments.rows, arguments.total
            outcome.started = time.time()
            outcome.fetch_seconds = outcome.started - began
            with working_as(context):
                self._finish(task, outcome, self._perform(task, args, kwargs))
        except StopIteration as stop:
            if task.kind == "next":
                outcome.ended = True
                self._iterators[task.instance] = iter(())  # a step that was requested ahead ends too
            else:
                outcome.failure = self._capture(stop, task, context)
        except Exception as error:  # every exception of a user's method becomes an outcome
            outcome.failure = self._capture(error, task, context)
        finally:
            _running.reset(token)
        outcome.seconds = time.time() - outcome.started
        return outcome

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
        with working_as(self._context(self._meshes.get(component.instance))):
            return function(self._instances[component.instance], *args, **kwargs)

    def _context(self, mesh: DeviceMesh | None) -> WorkerContext:
        return WorkerContext(self.info.group, self.info.rank, self.info.size, mesh)

    def _finish(self, task: Task, outcome: Outcome, value: Any) -> None:
        try:
            self._take_result(task, outcome, replace_lazy(value, Lazy.result))
        except RecursionError:
            raise CollectError(f"the result of {task.name}, a {type(value).__name__}, contains itself") from None

    def _take_result(self, task: Task, outcome: Outcome, value: object) -> None:
        if isinstance(value, _STREAMS):
            raise CollectError(
                f"{task.name} returned a {type(value).__name__}, which cannot be collected; return a list, or give the "
                "class __iter__ and __next__"
            )
        if type(value) not in PLAIN:
            try:
                outcome.rows = rows_of(value, "result")
            except DispatchError:  # columns of different lengths: a later call cannot split them
                outcome.rows = None
            outcome.is_list = isinstance(value, list)
        outcome.payload, outcome.produced = self._store.keep(snapshot(value, keep=True) if self._shared else value)

    def _capture(self, error: BaseException, task: Task, context: WorkerContext) -> Any:
        return capture(error, self.info.label(context.coordinate), self.info, task.name, live=self._live)

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
            self._instances[name] = task.target(*args, **kwargs)
            return None
        if task.kind == "drop":
            for held in (self._instances, self._meshes, self._iterators):
                held.pop(name, None)
            if not self._live:
                gc.collect()  # its objects may be in reference cycles
            return None
        try:
            instance = self._instances[name]
        except KeyError:
            raise NotInitializedError(
                f"{task.name}: {self.info.label()} holds no {name!r}: it was released, or built before a shutdown; "
                "build it again"
            ) from None
        if task.kind == "function":
            return task.target(instance, *args, **kwargs)
        if task.kind == "iterate":
            iterator = iter(instance)
            self._iterators[name] = iterator
            return iterator is instance
        if task.kind == "next":
            return next(self._iterators.get(name, instance))
        value = _value(instance, task.target, args, kwargs)
        return Itself.ITSELF if value is instance else value


def running_worker() -> Worker | None:
    """The worker that runs the current task; None on the driver."""
    return _running.get()


def _value(instance: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = getattr(instance, name)
    return found if isinstance(getattr(type(instance), name, None), property) else found(*args, **kwargs)

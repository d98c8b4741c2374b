"""The worker of every backend: it runs a task and returns an outcome, also if the task raises."""

from __future__ import annotations

import gc
import threading
import time
from asyncio import to_thread
from contextlib import nullcontext
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import RUNNING, RunningTask, WorkerContext, any_lazy, current_worker, working_as
from twinkle_remote.errors import CallCancelledError, CollectError, DispatchError, NotInitializedError, PlacementError
from twinkle_remote.failures.travel import capture
from twinkle_remote.protocol.messages import Failure, Itself, Outcome, StoredSlot, is_component_type
from twinkle_remote.protocol.spec import execute_of, options_under
from twinkle_remote.rows.columns import names_of
from twinkle_remote.rows.cut import PLAIN, costs_of, counted_rows, rows_of
from twinkle_remote.rows.unknown import runs_once
from twinkle_remote.sessions.seeding import constructor_seeded, seed_process
from twinkle_remote.worker.event_loop import EventLoop, LoopTask
from twinkle_remote.worker.replay import FailureSaver

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterator, MutableMapping

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.messages import Component, Task, WorkerInfo
    from twinkle_remote.tables.nodes import Columns, LazySlot, Rows
    from twinkle_remote.tables.transfers import TaskTransfer

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_STREAMS = (GeneratorType, AsyncGeneratorType, CoroutineType)
_UNSEEN_ROWS = PLAIN | {dict, list, tuple}
_GRACE_SECONDS = 1.0  # beyond a task's own: its caller cancels at the deadline, if it waits


class Worker:
    """The components of one rank.

    Args:
        info: Identity of this worker.
        store: Store for stored and lazy arguments and for results.
        live: The driver shares this process: exceptions are not pickled.
        shared: The caller's values are in this process, and are copied; None follows `live`.
        instances: Mapping that holds the components; by default as long as the worker exists.

    Attributes:
        loop: Its event loop.
        methods: Number of calls of methods that it has begun.
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
        self.loop = EventLoop(info.label())
        self._store = store
        self._live = live
        self._shared = live if shared is None else shared
        self._instances: MutableMapping[str, Any] = {} if instances is None else instances
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._latest: DeviceMesh | None = None
        self._iterators: dict[str, Iterator[Any]] = {}
        self._saver = FailureSaver(info)
        self._ended: Failure | None = None
        self.methods = 0

    def run(self, task: Task, failure: Failure | None = None, given: TaskTransfer | None = None) -> Outcome:
        """Run one task to its end; the outcome has a failure where it raised an `Exception`.

        Args:
            task: The task.
            failure: That of a call that makes a lazy argument, which ends the task.
            given: What the task reads of its lazy arguments; None if the task says it.
        """
        context = self._context_of(task)
        outcome = Outcome(self.info.rank, failure=self._ended or failure, started=time.time())
        if outcome.failure is not None:
            return outcome
        running = RunningTask(self, task.name, 0 if task.kind == "beside" else threading.get_ident())
        token, called = RUNNING.set(running), None
        try:
            called = args, kwargs = self._arguments(task, given, outcome)
            with working_as(context):
                value = self._perform(task, args, kwargs, outcome)
                running.wait()
                self._finish(task, outcome, value)
        except Exception as error:  # every exception of a user's method becomes an outcome
            outcome.failure = self._failed(error, task, context, called)
        finally:
            RUNNING.reset(token)
        outcome.seconds = time.time() - outcome.started
        return outcome

    def end(self, why: str) -> None:
        """Run no task any more: each one fails as if this worker had ended, for this reason."""
        self._ended = Failure(self.info.label(), f"{self.info.node} pid {self.info.pid}", "", why, died=True)

    def start(
        self,
        task: Task,
        failure: Failure | None = None,
        given: TaskTransfer | None = None,
        *,
        key: Hashable,
        answer: Callable[[Outcome], object],
    ) -> None:
        """Start a task with `on_loop` on this worker's event loop; returns when its arguments are read.

        Args:
            task: The task.
            failure: As for `run`.
            given: As for `run`.
            key: Id of the task, for `loop.cancel` and `loop.stack`.
            answer: Called once with the outcome, on any thread.
        """
        context = self._context_of(task)
        outcome = Outcome(self.info.rank, failure=self._ended or failure, started=time.time())
        if outcome.failure is not None:
            answer(outcome)
            return
        token = RUNNING.set(running := RunningTask(self, task.name))
        try:
            called = self._arguments(task, given, outcome)
            work = self._coroutine(task, running, outcome, *called)
            on_loop = LoopTask(outcome, work, lambda error: self._failed(error, task, context, called), answer)
            with working_as(context):
                self.loop.start(key, on_loop, None if task.seconds is None else task.seconds + _GRACE_SECONDS)
        except Exception as error:  # as in `run`
            outcome.failure = self._capture(error, task, context)
            answer(outcome)
        finally:
            RUNNING.reset(token)

    def _coroutine(
        self, task: Task, running: RunningTask, outcome: Outcome, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """A task of the event loop: the user's coroutine in its place, then the calls that it has made."""
        from twinkle_remote.sessions.pending_calls import answer_of  # few workers run coroutines

        instance = self._instance(task)
        places = self.loop.places(task.instance, instance)

        async def work() -> None:
            async with places:
                outcome.started = time.time()
                value = await getattr(instance, task.target)(*args, **kwargs)
            while (call := running.next_left()) is not None:
                await answer_of((call,), call.wait)
            value = Itself.ITSELF if value is instance else value
            if type(value) in PLAIN:
                self._finish(task, outcome, value)
            else:  # it may take long
                await to_thread(self._finish, task, outcome, value)

        return work

    def _context_of(self, task: Task) -> WorkerContext:
        creates = task.kind == "create"
        cls = task.target if creates else type(self._instances.get(task.instance))
        self._latest = task.mesh if creates else self._meshes.get(task.instance)
        options = options_under(cls, task.target) if isinstance(task.target, str) and self.info.size > 1 else None
        alone = is_component_type(cls) and execute_of(cls) == "first"
        return self._context(self._latest, alone=alone or (options is not None and options.execute == "first"))

    def outside_tasks(self) -> WorkerContext:
        """The place of code of this worker that no task runs, with the mesh of the component that was called last."""
        return self._context(self._latest)

    def _arguments(self, task: Task, given: TaskTransfer | None, outcome: Outcome) -> _Arguments:
        """Fetch the arguments of a task; the outcome takes their metrics."""
        self.methods += task.kind == "method"
        arguments = TaskInputs(task, given or task.reads, self._store)
        args, kwargs = arguments.values()
        if self._shared and (args or kwargs):
            from twinkle_remote.rows.plain import snapshot  # workers in processes of their own do without

            args, kwargs = snapshot((args, kwargs))
        outcome.fetched = arguments.fetched
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
        with working_as(self._context(self._meshes.get(component.instance), alone=current_worker().alone)):
            return function(self._instances[component.instance], *args, **kwargs)

    def _context(self, mesh: DeviceMesh | None, *, alone: bool = False) -> WorkerContext:
        return WorkerContext(self.info.group, self.info.rank, self.info.size, mesh, alone)

    def _finish(self, task: Task, outcome: Outcome, value: Any) -> None:
        """Keep the result, and describe it in the outcome."""
        if any_lazy():
            from twinkle_remote.lazy.lazy import Lazy, replace_lazy  # most workers have no lazy result

            value = replace_lazy(value, Lazy.result)
        kind = type(value)
        if kind not in PLAIN and kind is not list and (isinstance(value, _STREAMS) or runs_once(kind)):
            raise CollectError(
                f"{task.name} returned a {kind.__name__}, which cannot be collected; return a list, or give the "
                "class __iter__ and __next__"
            )
        if kind not in PLAIN:
            try:
                outcome.rows = rows_of(value, "result")
            except DispatchError:  # columns of different lengths: a later call cannot split them
                outcome.rows = None
            outcome.is_list = isinstance(value, list)
            outcome.columns = None if kind is list else names_of(value)
            outcome.costs = None if outcome.rows is None else costs_of(value)
        if self._shared:
            from twinkle_remote.rows.plain import snapshot  # as in `_arguments`

            value = snapshot(value, keep=True)
        outcome.payload, outcome.produced = self._store.keep(value, eager=task.eager)

    def _capture(self, error: BaseException, task: Task, context: WorkerContext) -> Failure:
        return capture(error, self.info.label(context.coordinate), self.info, task.name, live=self._live)

    def _failed(self, error: BaseException, task: Task, context: WorkerContext, called: _Arguments | None) -> Failure:
        """The failure of a call that was made; on request it is saved."""
        failure = self._capture(error, task, context)
        if called is None or not isinstance(error, Exception) or isinstance(error, CallCancelledError):
            return failure
        return self._saver.save(task, failure, *called)

    def _check_free(self, name: str) -> None:
        if name in self._instances:
            raise PlacementError(f"instance_id={name!r} is taken on group {self.info.group!r}: give another one")

    def _perform(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Outcome) -> Any:
        name = task.instance
        if task.kind == "create":
            self._check_free(name)
            self._meshes[name] = task.mesh
            self._saver.constructs(task, args, kwargs)
            if task.seed is not None and not self._shared:
                seed_process(task.seed)
            own = task.seed is not None and self._shared  # in the user's process the generators are put back
            with constructor_seeded(task.seed or 0) if own else nullcontext():
                self._instances[name] = task.target(*args, **kwargs)
            return None
        if task.kind == "drop":
            for held in (self._instances, self._meshes, self._iterators):
                held.pop(name, None)
            self._saver.constructors.pop(name, None)
            self.loop.drop(name)
            if not self._live:
                gc.collect()  # its objects may be in reference cycles
            return None
        instance = self._instance(task)
        if task.kind in ("function", "beside"):
            return task.target(instance, *args, **kwargs)
        if task.kind == "iterate":
            self._iterators[name] = iter(instance)
            return self._iterators[name] is instance
        if task.kind == "next":
            try:
                return next(self._iterators.get(name, instance))
            except StopIteration:
                self._iterators[name] = iter(())  # a step that was requested ahead ends too
                outcome.ended = True
                return None
        is_property = isinstance(getattr(type(instance), task.target, None), property)
        value = getattr(instance, task.target) if is_property else getattr(instance, task.target)(*args, **kwargs)
        return Itself.ITSELF if value is instance else value

    def _instance(self, task: Task) -> Any:
        try:
            return self._instances[task.instance]
        except KeyError:
            raise NotInitializedError(
                f"{task.name}: {self.info.label()} holds no {task.instance!r}: it was released, or built before a "
                "shutdown; build it again"
            ) from None


class TaskInputs:
    """The arguments of one task, and the number of bytes that were fetched for them.

    Attributes:
        fetched: Bytes that came from other processes.
        rows: Rows of split arguments that this rank received; None if nothing was split.
        total: Rows of split arguments of the whole call.
        numbers: The numbers of this rank's rows, if they are divided by their costs; None otherwise.
    """

    def __init__(self, task: Task, given: TaskTransfer | None, store: Store) -> None:
        self.fetched = 0
        self._task, self._given, self._store = task, given, store
        self.rows = task.rows if given is None or given.rows is None else given.rows
        self.total = task.total if given is None else given.total
        self.numbers = task.numbers if given is None or given.numbers is None else given.numbers
        self._cache: dict[int, Any] = {}

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the method; it waits for the processes that hold lazy ones.

        Raises:
            DispatchError: Lazy arguments have different numbers of rows than other arguments.
        """
        task = self._task
        if not task.slots:
            return task.args, dict(task.kwargs)
        args = tuple(map(self._decoded, task.args))
        return args, {key: self._decoded(value) for key, value in task.kwargs.items()}

    def _decoded(self, value: Any) -> Any:
        """An argument, or a part of one, with values in place of slots."""
        from twinkle_remote.rows.plain import map_parts  # no call without slots needs them
        from twinkle_remote.tables.nodes import LazySlot

        kind = type(value)
        if kind in PLAIN or (kind is list and _UNSEEN_ROWS.issuperset(map(type, value))):
            return value
        if kind is StoredSlot:
            return self._fetch(value.ref, value.rows)
        if kind is LazySlot:
            if value.index not in self._cache:
                self._cache[value.index] = self._value(value)
            return self._cache[value.index]
        skipped = _UNSEEN_ROWS if kind is list else PLAIN
        return map_parts(value, lambda part: part if type(part) in skipped else self._decoded(part))

    def _fetch(self, payload: object, rows: Rows | None = None, names: Columns | None = None) -> Any:
        """A piece of a stored value, whose bytes are counted."""
        value, size = self._store.get(payload, rows, names)
        self.fetched += size
        return value

    def _value(self, slot: LazySlot) -> Any:
        """A lazy argument: read as the caller has planned it, or cut here, where only its value shows its rows."""
        from twinkle_mesh import balanced_slice
        from twinkle_remote.rows.cut import take
        from twinkle_remote.tables.plan import count
        from twinkle_remote.tables.read import read  # no other call needs it
        from twinkle_remote.tables.transfers import check_total

        task, given = self._task, self._given
        assert given is not None
        node = given.values[slot.index]
        if isinstance(node, DispatchError):
            raise type(node)(str(node))  # each task's own
        value = read(node, self._fetch)
        is_cut = slot.split and count(node) is None and task.share is not None
        if not is_cut or (given.lists_only and not isinstance(value, list)):
            return value
        rows = rows_of(value, f"{task.name}: a lazy argument")
        if rows is None:
            return value
        check_total(rows, self.total, task.name)
        assert task.share is not None
        index, shares = task.share
        part = balanced_slice(rows, shares, index)
        numbers = range(part.start, part.stop) if self.numbers is None else self.numbers
        self.total, self.rows = rows, len(numbers)
        return take(value, numbers)

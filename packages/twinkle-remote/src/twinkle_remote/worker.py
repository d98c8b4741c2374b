"""What runs on every worker of every backend: one task in, one outcome out, no exception past this point."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import WorkerContext, working_as
from twinkle_remote.errors import DispatchError
from twinkle_remote.failure import capture
from twinkle_remote.handover import Inputs
from twinkle_remote.protocol import Itself, Outcome
from twinkle_remote.split import rows_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.failure import WorkerInfo
    from twinkle_remote.protocol import Store, Task


class Worker:
    """The components of one rank.

    Args:
        info: Who this worker is.
        store: Where it reads stored and handed-over values, and keeps its results.
        live: The driver shares this process, so that exceptions need not be pickled.
        instances: Where components are kept; by default for the worker's life.
    """

    def __init__(
        self,
        info: WorkerInfo,
        store: Store,
        *,
        live: bool = False,
        instances: MutableMapping[str, Any] | None = None,
    ) -> None:
        self.info = info
        self._store = store
        self._live = live
        self._instances: MutableMapping[str, Any] = {} if instances is None else instances
        self._meshes: dict[str, DeviceMesh | None] = {}
        self._iterators: dict[str, Any] = {}

    def run(self, task: Task, inputs: Sequence[Outcome]) -> Outcome:
        """Run one task.

        Args:
            task: What to do.
            inputs: Outcomes of the replies that the task's hand-overs are made of.

        Returns:
            The outcome; it has a failure where anything raised an `Exception`.
        """
        mesh = task.mesh if task.kind == "create" else self._meshes.get(task.instance)
        context = WorkerContext(self.info.group, self.info.rank, self.info.size, mesh)
        began = time.time()
        arguments = Inputs(task, inputs, self._store)
        outcome = Outcome(self.info.rank, started=began)
        for given in inputs:
            if given.failure is not None:
                outcome.failure = given.failure.as_upstream()
                return outcome
        try:
            args, kwargs = arguments.values()
            outcome.fetched, outcome.rows_given, outcome.total = (
                arguments.fetched,
                arguments.rows,
                arguments.total,
            )
            outcome.started = time.time()
            outcome.fetch_seconds = outcome.started - began
            with working_as(context):
                value = self._perform(task, args, kwargs)
            self._finish(outcome, value)
        except StopIteration as stop:
            if task.kind == "next":
                outcome.ended = True
            else:
                outcome.failure = self._capture(stop, task, context)
        except Exception as error:  # every exception of a user's method becomes an outcome
            outcome.failure = self._capture(error, task, context)
        outcome.seconds = time.time() - outcome.started
        return outcome

    def adopt(self, instance: str, value: object, mesh: DeviceMesh | None) -> bool:
        """Take in a component that was built elsewhere in this process; False when it cannot be referred to."""
        try:
            self._instances[instance] = value
        except TypeError:  # a class with __slots__ and no __weakref__
            return False
        self._meshes[instance] = mesh
        return True

    def _finish(self, outcome: Outcome, value: object) -> None:
        try:
            outcome.rows = rows_of(value, "result")
        except DispatchError:  # ragged columns: nothing that a later call could split
            outcome.rows = None
        outcome.is_list = isinstance(value, list)
        outcome.payload, outcome.produced = self._store.keep(value)

    def _capture(self, error: BaseException, task: Task, context: WorkerContext) -> Any:
        label = self.info.label(context.coordinate)
        return capture(error, label, self.info, task.name, live=self._live)

    def _perform(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if task.kind == "create":
            self._meshes[task.instance] = task.mesh
            self._instances[task.instance] = task.target(*args, **kwargs)
            return None
        instance = self._instances[task.instance]
        if task.kind == "function":
            return task.target(instance, *args, **kwargs)
        if task.kind == "iterate":
            iterator = iter(instance)
            self._iterators[task.instance] = iterator
            return iterator is instance
        if task.kind == "next":
            return next(self._iterators.get(task.instance, instance))
        value = getattr(instance, task.target)(*args, **kwargs)
        return Itself.ITSELF if value is instance else value

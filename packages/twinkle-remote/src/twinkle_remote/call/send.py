"""The path of every call, the same on every backend: it is divided, sent as one task to each rank, and in flight.

Calls of a remote function, of a function on every worker (`run_on_workers`), and the steps of a loop over a component.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from twinkle_remote.call.collect import warn_whole
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.pending import PendingCall
from twinkle_remote.context import RUNNING, call_line, in_event_loop
from twinkle_remote.errors import CallTimeoutError, CollectError, NotInitializedError, TwinkleError, WorkerDiedError
from twinkle_remote.failures.report import SIGNALS, no_end
from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.protocol.backend import InputReplies
from twinkle_remote.protocol.messages import Call, Task, component_of
from twinkle_remote.protocol.spec import CALL, FunctionSpec, collected_elsewhere
from twinkle_remote.sessions.session import raise_not_retrieved, running
from twinkle_remote.sessions.telemetry import CallRecord
from twinkle_remote.tables.transfers import lazy_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.messages import Component
    from twinkle_remote.sessions.session import Runtime
    from twinkle_remote.tables.transfers import LazyArguments, TaskTransfer


_NO_LAZIES: LazyArguments = InputReplies(), (), None


def call_method(call: Call, itself: object, *, lazy: bool | None = None) -> Any:
    """Call a remote function of a component, lazily or not; None follows the function's option, then the session's.

    Returns:
        A lazy result, or the value.

    Raises:
        TwinkleError: An earlier call failed, and nobody has its result any more: nothing was sent.
    """
    raise_not_retrieved()
    if call.spec.on_loop and in_event_loop():
        lazy = True  # what an event loop calls it awaits
    if lazy is None:
        lazy = running().defaults.lazy_collect if call.spec.lazy_collect is None else call.spec.lazy_collect
    pending = start(call if lazy else replace(call, eager=True), held=True)
    if call.spec.sync:
        pending.wait()
    if lazy:
        return Lazy(pending, itself)  # no local: in one process a failure's traceback holds this frame
    return Lazy(pending, itself).result()


def start(call: Call, *, held: bool = False, prefetched: bool = False) -> PendingCall:
    """Send a call, and return it in flight.

    It may fail before this returns, so what its caller does with a failure is given here, not after it.

    Args:
        call: The call.
        held: The caller waits for it, or makes a lazy result of it: a failure before that is not reported as unseen.
        prefetched: It is made ahead of its use, or nobody asks what becomes of it: its failure is never unseen.

    Raises:
        NotInitializedError: There is no session, or the component was released.
        DispatchError: The arguments cannot be divided as the function asks.
        CallTimeoutError: Too many calls are in flight: this one was not sent within its timeout.
        WorkerDiedError: The process that stores the arguments has ended; nothing was sent.
    """
    runtime, component = running(), call.component
    if runtime.backend.group(component.group).undivided:
        call = replace(call, spec=collected_elsewhere(call.spec))
    if component.key in runtime.released:
        raise NotInitializedError(f"{call.name}: {component.instance!r} was released; build it again")
    if not call.spec.calls_one or call.reads_ranks:
        return _start(runtime, call, held, prefetched)
    call, load = runtime.loads.take(call)
    try:
        pending = _start(runtime, call, held, prefetched)
    except BaseException:
        runtime.loads.end(load)
        raise
    pending.notify(partial(runtime.loads.end, load))
    return pending


def _start(runtime: Runtime, call: Call, held: bool, prefetched: bool) -> PendingCall:
    began, group, store = time.perf_counter(), runtime.backend.group(call.component.group), runtime.backend.store
    calls = runtime.in_flight.make_room(call)
    inputs, sources, reads = _NO_LAZIES
    try:
        shares = dispatch(call, store.put, marks=group.undivided)
        submitted = time.time()
        if shares.encoder.lazies:
            inputs, sources, reads = lazy_arguments(call, shares)
        replies = group.submit(call.ranks, _tasks(call, shares, reads), shares.of_rank, inputs)
    except WorkerDiedError as error:
        text = f"{call.name} was not sent to {group.name!r}: {error}\n  called from {call.line}"
        raise WorkerDiedError(text) from error
    if shares.undivided is not None:
        warn_whole(call.name, shares.undivided, len(shares.of_rank))
    record = runtime.stats.open(call.name, group.name, len(replies), submitted)
    record.driver_sent = shares.encoder.stored_bytes + sum([reply.sent for reply in replies])
    bare, each = call.without_arguments(), shares.each
    pending = PendingCall(runtime, bare, replies, record, sources, each=each, held=held, prefetched=prefetched)
    record.driver_seconds = time.perf_counter() - began
    if not prefetched and (task := RUNNING.get()) is not None:
        task.add(pending)
    pending.listen()
    calls[pending] = None  # last: a session does not wait for a call that Ctrl-C has left halfway
    if pending.done():  # before it was there
        calls.pop(pending, None)
    return pending


def _tasks(call: Call, shares: Shares, reads: Sequence[TaskTransfer] | None) -> Sequence[Task]:
    """The distinct tasks of a call."""
    kind, spec = call.kind, call.spec
    on_loop = spec.on_loop and kind == "method"
    return [
        Task(
            kind,
            call.component.instance,
            call.name,
            call.target,
            args,
            kwargs,
            slots=shares.encoder.used,
            share=None if shares.count is None else (index, shares.count),
            total=shares.real,
            rows=shares.rows(index),
            numbers=shares.numbers(index),
            in_order=spec.collect == "flatten",
            reads=None if reads is None else reads[index],
            place=index,
            on_loop=on_loop,
            seconds=spec.timeout,
            mesh=call.mesh if kind == "create" else None,
            seed=call.seed,
            eager=call.eager,
        )
        for index, (args, kwargs) in enumerate(shares.arguments)
    ]


def part_of(whole: PendingCall, ranks: Sequence[int]) -> PendingCall:
    """The call on some of its ranks, as a call that ends with them; its value is that of the first one."""
    spec = replace(whole.spec, collect="first", timeout=None, execute="all")
    call = replace(whole.call, spec=spec, component=replace(whole.call.component, ranks=tuple(ranks)))
    record = CallRecord(call.name, whole.group.name, len(ranks))
    replies = [whole.reply(rank) for rank in ranks]
    part = PendingCall(whole.runtime, call, replies, record, [whole], repeats=True, prefetched=True)
    part.listen()
    return part


P = ParamSpec("P")
R = TypeVar("R")


@overload
def submit(bound_method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Lazy[R]: ...
@overload
def submit(bound_method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Lazy[R]: ...
def submit(bound_method: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a remote function lazily, also with `lazy_collect=False`; the typed form of a lazy call.

    Raises:
        TypeError: The argument is not a bound remote function of a component.
    """
    call = bound_call(bound_method, args, kwargs, call_line())
    return call_method(call, bound_method.__self__, lazy=True)


def bound_call(bound_method: Any, args: tuple[Any, ...], kwargs: dict[str, Any], line: str) -> Call:
    """The call of a bound remote function.

    Raises:
        TypeError: It is not a remote function, its object was built in this process without a session, or it does not
            take the arguments.
    """
    make, itself = getattr(bound_method, CALL, None), getattr(bound_method, "__self__", None)
    if make is None or component_of(itself) is None:
        raise TypeError(
            f"expected a remote function of a component, as in submit(actor.update, batch), got {bound_method!r}"
        )
    call: Call = make(itself, args, kwargs, line)
    return call


def start_on_workers(
    handle: object,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]] | None = None,
    timeout: float | None = None,
    *,
    ranks: Sequence[int] | None = None,
    concurrent: bool = False,
    prefetched: bool = False,
) -> PendingCall:
    """Start `function(instance, *args)` on every worker of a component, each with its own arguments.

    Args:
        handle: A component.
        function: A module-level function, so that it pickles; it receives the component's object on that worker.
        arguments: One tuple for each worker, in rank order; None means no arguments.
        timeout: Seconds to the deadline; None for no deadline.
        ranks: Only these workers, ascending; None means all.
        concurrent: Run it while the other calls of the workers do, not after them.
        prefetched: Its result may never be used, so its failure never counts as unseen. Otherwise the caller waits for
            it.

    Raises:
        TypeError: `handle` is not a component.
        ValueError: The number of tuples is not the number of workers.
    """
    component = component_of(handle)
    if component is None:
        raise TypeError(f"expected a component, got {type(handle).__name__}")
    if ranks is not None:
        component = replace(component, ranks=tuple(ranks))
    count = len(component.ranks)
    given = [()] * count if arguments is None else list(arguments)
    if len(given) != count:
        raise ValueError(f"{component.name} is on {count} workers, got arguments for {len(given)}")

    def one_each(
        length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return given[i], {}

    spec = FunctionSpec(dispatch=one_each, collect=_as_list, timeout=timeout)
    name = f"{component.name}.{getattr(function, '__name__', 'function')}"
    call = Call("beside" if concurrent else "function", component, function, name, spec, call_line())
    return start(call, held=True, prefetched=prefetched)


def _as_list(results: list[Any], mesh: DeviceMesh | None) -> list[Any]:
    return results


def run_on_workers(
    handle: object,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]] | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """`start_on_workers` with the list of the results, in rank order; waits for them.

    Raises:
        TwinkleError: As for any call.
    """
    raise_not_retrieved()
    return Lazy(start_on_workers(handle, function, arguments, timeout)).result()


_OPENING = FunctionSpec(dispatch="all", sync=True)


class RemoteIterator:
    """The iterator of a component; a step that is late is not lost: the following `next` waits for it again."""

    def __init__(self, component: Component, spec: FunctionSpec, itself: object) -> None:
        self._component, self._spec, self._itself = component, spec, itself
        self._step: PendingCall | None = None
        self._ended = False

    def open(self) -> None:
        """Call `__iter__` on the workers, and wait for it."""
        if self._step is not None:
            return
        name = f"{self._component.name}.__iter__"
        start(Call("iterate", self._component, "__iter__", name, _OPENING, call_line()), held=True).wait()
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next step: waits until every worker has made it, or until the deadline of `__next__`."""
        raise_not_retrieved()
        if self._ended:
            raise StopIteration
        call = self._step = self._step or self._ask()
        try:
            call.wait()
        except CallTimeoutError:
            raise
        except TwinkleError as error:
            self._step = None
            raise (no_end(error) if isinstance(error, SIGNALS) else error) from error.__cause__
        self._step = None
        at_end = [rank for rank in call.ranks if call.outcome(rank).ended]
        if not at_end:
            return Lazy(call, self._itself)
        self._ended = True
        if len(at_end) < len(call.ranks):
            raise CollectError(
                f"{call.name}: ranks {at_end} are at their end, the others of {list(call.ranks)} are not; every rank "
                "takes the same number of steps"
            )
        raise StopIteration

    def _ask(self) -> PendingCall:
        name = f"{self._component.name}.__next__"
        return start(Call("next", self._component, "__next__", name, self._spec, call_line()), prefetched=True)

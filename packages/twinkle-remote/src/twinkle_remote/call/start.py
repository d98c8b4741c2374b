"""The path of every call, the same on every backend: bind, dispatch, submit to N ranks, collect."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.lazy import Lazy
from twinkle_remote.call.lazy_arguments import LazyArguments, lists_only
from twinkle_remote.call.pending_call import PendingCall
from twinkle_remote.call.start_whole import start_whole
from twinkle_remote.call.stuck_peers import free_stuck_peers
from twinkle_remote.call.whole_rows import warn_whole
from twinkle_remote.context import caller
from twinkle_remote.errors import NotInitializedError, WorkerDiedError
from twinkle_remote.failures.frames import driver_line
from twinkle_remote.protocol.component import is_handle
from twinkle_remote.protocol.failure import WorkerInfo
from twinkle_remote.protocol.messages import Share, Task
from twinkle_remote.sessions.collector import paused_for
from twinkle_remote.sessions.current import running
from twinkle_remote.values.registered_splitters import registered_splitters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.backend import WorkerGroup
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.handed import HandedShare
    from twinkle_remote.protocol.messages import Kind
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.sessions.runtime import Runtime
    from twinkle_remote.sessions.stats import CallRecord
    from twinkle_remote.values.registered_splitters import RegisteredSplitters


def call_method(
    component: Component,
    method: str,
    spec: FunctionSpec,
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    itself: object,
    lazy: bool | None = None,
) -> Any:
    """Call a remote function of a component.

    Args:
        component: The component.
        method: Name of the method.
        spec: Options of the method.
        names: Parameter names of the positional arguments.
        args: Positional arguments, already bound.
        kwargs: Keyword arguments, already bound.
        itself: The caller's handle, or the component itself.
        lazy: Whether to return a lazy result; None follows the function's option, then the runtime's.

    Returns:
        A lazy result, or the value.
    """
    name = f"{component.name}.{method}"
    call = start(
        component, "method", method, name, spec, names, args, kwargs, own_share=not is_handle(itself), held=True
    )
    if spec.sync:
        call.wait()
    result: Lazy[Any] = Lazy(call, itself)
    if lazy is None:
        lazy = running().lazy_collect if spec.lazy_collect is None else spec.lazy_collect
    return result if lazy else result.result()


def start(
    component: Component,
    kind: Kind,
    target: Any,
    name: str,
    spec: FunctionSpec,
    names: Sequence[str] = (),
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    own_share: bool = False,
    by_rank: bool = False,
    held: bool = False,
    at_once: bool = False,
) -> PendingCall:
    """Divide the arguments, submit one task to each called rank, and return the call in flight.

    Args:
        component: The component on the workers.
        kind: Kind of the task.
        target: The class, the method's name, or the function.
        name: Class.method, for messages.
        spec: Options of the call.
        names: Parameter names of the positional arguments.
        args: Positional arguments.
        kwargs: Keyword arguments.
        own_share: This process is one of the ranks: a batch marked as its share goes whole.
        by_rank: The caller reads the answer of each rank by itself, also of a backend that takes the call undivided.
        held: The caller waits for it, or makes a lazy result of it: a failure before that is not told as unseen.
        at_once: The caller does not wait until fewer calls are in flight.

    Raises:
        NotInitializedError: There is no session, or the component was released.
        DispatchError: The arguments cannot be divided as the function asks.
        CallTimeoutError: Too many calls are in flight: this one was not sent within its timeout.
        WorkerDiedError: The process that stores the arguments has ended; nothing was sent.
    """
    runtime, began = running(), time.perf_counter()
    if runtime.is_released(component.group, component.instance):
        raise NotInitializedError(f"{name}: {component.instance!r} was released; build it again")
    given = kwargs or {}
    if runtime.whole is not None:
        return start_whole(runtime, component, kind, target, name, spec, args, given, by_rank=by_rank, held=held)
    group = runtime.backend.group(component.group)
    ranks = component.ranks[:1] if spec.execute == "first" else component.ranks
    queue = runtime.in_flight.queue(group.name, ranks, name, 0.0 if at_once else spec.timeout, spec.collective)
    put, mesh = runtime.backend.store.put, component.mesh
    with paused_for(len(ranks)):
        try:
            shares = dispatch(spec, names, args, given, ranks=ranks, mesh=mesh, put=put, name=name, own_share=own_share)
            record = runtime.stats.open(name, group.name, len(ranks))
            lazies = LazyArguments(name, spec, shares, runtime.backend.store.keep)
            tasks = _tasks(component, kind, target, name, spec, shares, lazies.pieces)
            group.prepare(tasks)
        except WorkerDiedError as error:
            raise _unsent(name, group.name, error) from error
        call = _submit(runtime, group, component, name, spec, ranks, shares, lazies, tasks, record)
    record.driver_seconds, call.held = time.perf_counter() - began, held
    queue.add(call)
    return call


def _submit(
    runtime: Runtime,
    group: WorkerGroup,
    component: Component,
    name: str,
    spec: FunctionSpec,
    ranks: Sequence[int],
    shares: Shares,
    lazies: LazyArguments,
    tasks: Sequence[Task],
    record: CallRecord,
) -> PendingCall:
    """Submit the task of each rank, with the replies that it waits for."""
    inputs = lazies.inputs
    if shares.undivided is not None:
        warn_whole(name, shares.undivided, len(ranks))
    with runtime.sending if len(ranks) > 1 else nullcontext():  # every rank gets this process's calls in one order
        replies = group.submit_all(ranks, tasks, shares.of_rank, inputs)
    record.driver_sent = shares.encoder.stored_bytes + sum([reply.sent for reply in replies])
    call = PendingCall(
        runtime,
        group,
        name,
        spec,
        component.mesh,
        replies,
        each=shares.each,
        line=_line(),
        record=record,
        sources=lazies.sources,
    )
    if spec.collective:
        call.on_failures = partial(free_stuck_peers, call)
    return call


def _unsent(name: str, group: str, error: WorkerDiedError) -> WorkerDiedError:
    """The same error, with the name of the call that was not sent."""
    return WorkerDiedError(f"{name} was not sent to {group!r}: {error}\n  called from {_line()}")


def _line() -> str:
    """File and line of the call, and the worker that makes it."""
    here = caller()
    if here.group is None or here.rank is None:
        return driver_line()
    return f"{driver_line()} on {WorkerInfo(here.group, here.rank, here.world_size).label(here.coordinate)}"


def _tasks(
    component: Component,
    kind: Kind,
    target: Any,
    name: str,
    spec: FunctionSpec,
    shares: Shares,
    pieces: Sequence[HandedShare] | None,
) -> Sequence[Task]:
    on_loop = spec.on_loop and kind in ("method", "item", "close")
    seconds = spec.timeout if on_loop else None
    if kind == "method" and shares.arguments == [((), {})]:
        return [_bare_task(component.instance, name, target, registered_splitters(), on_loop, seconds, spec.untold)]
    only_lists, splitters = lists_only(spec), registered_splitters()
    return [
        Task(
            kind,
            component.instance,
            name,
            target,
            args,
            kwargs,
            slots=shares.encoder.used,
            share=None if shares.count is None else Share(index, shares.count),
            total=shares.real,
            rows=shares.rows(index),
            uneven=spec.uneven,
            lists_only=only_lists,
            handed=shares.encoder.handed_of(index),
            pieces=None if pieces is None else pieces[index],
            place=index,
            splitters=splitters,
            on_loop=on_loop,
            seconds=seconds,
            beside=spec.beside,
            untold=spec.untold,
            masks=spec.masks,
            mesh=component.mesh if kind == "create" else None,
        )
        for index, (args, kwargs) in enumerate(shares.arguments)
    ]


@lru_cache(maxsize=1024)
def _bare_task(
    instance: str,
    name: str,
    method: str,
    known: RegisteredSplitters | None,
    on_loop: bool,
    seconds: float | None,
    untold: bool,
) -> Task:
    """The task of a call without arguments; it is cached, so that a backend prepares it once."""
    return Task("method", instance, name, method, splitters=known, on_loop=on_loop, seconds=seconds, untold=untold)

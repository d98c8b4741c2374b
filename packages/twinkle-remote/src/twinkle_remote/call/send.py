"""The path of every call, the same on every backend: it is divided, sent as one task to each rank, and in flight."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.collect import warn_whole
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.pending import PendingCall
from twinkle_remote.call.stuck_peers import free_stuck_peers
from twinkle_remote.errors import NotInitializedError, WorkerDiedError
from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.protocol.inputs import InputReplies
from twinkle_remote.protocol.messages import Share, Task
from twinkle_remote.protocol.spec import collected_elsewhere
from twinkle_remote.running import RUNNING
from twinkle_remote.sessions.current import raise_not_retrieved, running
from twinkle_remote.sessions.telemetry.stats import CallRecord
from twinkle_remote.tables.transfers import LazyArguments, lazy_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.sessions.current import Runtime
    from twinkle_remote.tables.transfers import TaskTransfer

_NO_LAZIES = LazyArguments(InputReplies())


def call_method(call: Call, itself: object, *, lazy: bool | None = None) -> Any:
    """Call a remote function of a component.

    Args:
        call: The call.
        itself: The caller's handle, or the component itself.
        lazy: Whether to return a lazy result; None follows the function's option, then the runtime's.

    Returns:
        A lazy result, or the value.

    Raises:
        TwinkleError: An earlier call failed, and nobody has its result any more: nothing was sent.
    """
    raise_not_retrieved()
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
    if runtime.has_released(component):
        raise NotInitializedError(f"{call.name}: {component.instance!r} was released; build it again")
    if not call.spec.calls_one or call.reads_ranks:
        return _start(runtime, call, held, prefetched)
    call, load = runtime.loads.take(call)
    try:
        pending = _start(runtime, call, held, prefetched)
    except BaseException:
        runtime.loads.end(load)
        raise
    pending.when_over(partial(runtime.loads.end, load))
    return pending


def _start(runtime: Runtime, call: Call, held: bool, prefetched: bool) -> PendingCall:
    began, group, store = time.perf_counter(), runtime.backend.group(call.component.group), runtime.backend.store
    queue = runtime.in_flight.queue(call, call.spec.timeout)
    inputs, sources, reads = _NO_LAZIES
    try:
        shares = dispatch(call, store.put, marks=group.undivided)
        submitted = time.time()
        if shares.encoder.lazies:
            inputs, sources, reads = lazy_arguments(call, shares)
        tasks = group.prepare(_tasks(call, shares, reads))
    except WorkerDiedError as error:
        text = f"{call.name} was not sent to {group.name!r}: {error}\n  called from {call.line}"
        raise WorkerDiedError(text) from error
    if shares.undivided is not None:
        warn_whole(call.name, shares.undivided, len(shares.of_rank))
    replies = group.submit(call.ranks, tasks, shares.of_rank, inputs)
    record = runtime.stats.open(call.name, group.name, len(replies), submitted)
    record.driver_sent = shares.encoder.stored_bytes + sum([reply.sent for reply in replies])
    bare, each = call.without_arguments(), shares.each
    pending = PendingCall(runtime, bare, replies, record, sources, each=each, held=held, prefetched=prefetched)
    if call.spec.collective:
        pending.on_failures = partial(free_stuck_peers, pending)
    record.driver_seconds = time.perf_counter() - began
    if not prefetched and (task := RUNNING.get()) is not None:
        task.add(pending)
    pending.listen()
    queue.add(pending)  # last: a session does not wait for a call that Ctrl-C has left halfway
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
            share=None if shares.count is None else Share(index, shares.count),
            total=shares.real,
            rows=shares.rows(index),
            numbers=shares.numbers(index),
            in_order=spec.collect == "flatten",
            reads=None if reads is None else reads[index],
            place=index,
            on_loop=on_loop,
            seconds=spec.timeout,
            concurrent=spec.concurrent,
            mesh=call.mesh if kind == "create" else None,
            seed=call.seed,
            eager=call.eager,
        )
        for index, (args, kwargs) in enumerate(shares.arguments)
    ]


def part_of(whole: PendingCall, ranks: Sequence[int]) -> PendingCall:
    """The call on some of its ranks, as a call that ends with them; its value is that of the first one.

    Args:
        whole: The whole call.
        ranks: Called ranks, the one whose value counts first.
    """
    spec = replace(whole.spec, collect="first", timeout=None, execute="all")
    call = replace(whole.call, spec=spec, component=replace(whole.call.component, ranks=tuple(ranks)))
    record = CallRecord(call.name, whole.group.name, len(ranks))
    replies = [whole.reply(rank) for rank in ranks]
    part = PendingCall(whole.runtime, call, replies, record, [whole], repeats=True, prefetched=True)
    part.listen()
    return part

"""The path of every call, the same on every backend: it is divided, sent as one task to each rank, and in flight."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.collect import warn_whole
from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.call.pending.pending_call import PendingCall
from twinkle_remote.call.pending.stuck_peers import free_stuck_peers
from twinkle_remote.errors import NotInitializedError, WorkerDiedError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.failures.report import called_alone, lateness
from twinkle_remote.protocol.call import Call
from twinkle_remote.protocol.messages import Share, Task, UncheckedError
from twinkle_remote.protocol.spec import collected_elsewhere
from twinkle_remote.running import RUNNING
from twinkle_remote.sessions.current import raise_not_retrieved, running
from twinkle_remote.sessions.telemetry.stats import CallRecord
from twinkle_remote.tables.lazy_arguments import LazyArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.backend import Reply, Store, WorkerGroup
    from twinkle_remote.protocol.call import Component
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.sessions.current import Runtime
    from twinkle_remote.tables.transfers import TaskTransfer


class SentTasks:
    """A call whose tasks this process has sent, or a part of it.

    Args:
        call: The call.
        group: The called workers' group.
        replies: One for each called rank, ascending.
        each: Every called rank received rows of its own; None if only the outcomes show it.
        submitted: Wall clock before the first was sent, in seconds.
        stored: Bytes that were stored for it.
        sources: The calls that make its arguments and were not done, or have failed.

    Attributes:
        sources: As given.
    """

    def __init__(
        self,
        call: Call,
        group: WorkerGroup,
        replies: Sequence[Reply],
        *,
        each: bool | None = False,
        submitted: float = 0.0,
        stored: int = 0,
        sources: Sequence[PendingCall] = (),
    ) -> None:
        self.replies = replies
        self.each = each
        self.submitted = submitted
        self.sent = stored + sum([reply.sent for reply in replies])
        self.sources = sources
        self._call = call
        self._group = group

    def cancel(self, pending: Sequence[Reply]) -> None:
        """Cancel it on event loops."""
        self._group.cancel(pending)

    def withdraw(self, pending: Sequence[Reply]) -> None:
        """Cancel it also where it has not begun."""
        self._group.withdraw(pending)

    def lateness(self, seconds: float | None, done: Sequence[int], pending: Sequence[Reply]) -> Exception:
        """The error that it is not done after this time."""
        call, mesh = self._call, self._call.mesh
        late = [reply.rank for reply in pending]
        head = (
            f"{call.name} on {call.where()} is not done after {seconds:g} s: "
            f"{f'ranks {done} are done' if done else 'no rank is done'}, "
            f"ranks {late} are not: {', '.join([self.label(rank) for rank in late])}"
        )
        size = self._group.size if mesh is None else mesh.world_size
        alone = called_alone(call.spec, [reply.rank for reply in self.replies], size)
        return lateness(head, call.line, done, late, self._group.stacks_of(pending), alone)

    def label(self, rank: int) -> str:
        """The short name of a called worker, with its coordinate."""
        return self._call.label(self._group.info(rank))


def send(runtime: Runtime, call: Call) -> SentTasks:
    """Divide the arguments of a call, and submit one task to each called rank.

    Raises:
        DispatchError: The arguments cannot be divided as the function asks.
        WorkerDiedError: The process that stores the arguments has ended; nothing was sent.
    """
    group, store = runtime.backend.group(call.component.group), runtime.backend.store
    try:
        shares, lazies, tasks, submitted = _prepared(call, group, store)
    except WorkerDiedError as error:
        text = f"{call.name} was not sent to {group.name!r}: {error}\n  called from {call.line}"
        raise WorkerDiedError(text) from error
    ranks = call.ranks
    if shares.undivided is not None:
        warn_whole(call.name, shares.undivided, len(ranks))
    return SentTasks(
        call.without_arguments(),
        group,
        group.submit(ranks, tasks, shares.of_rank, lazies.inputs),
        each=shares.each,
        submitted=submitted,
        stored=shares.encoder.stored_bytes,
        sources=lazies.sources,
    )


def _prepared(call: Call, group: WorkerGroup, store: Store) -> tuple[Shares, LazyArguments, Sequence[Task], float]:
    """The shares of a call, its lazy arguments, its tasks, and when they were ready.

    A group that pickles finds by itself what its caller would look for in lists of many rows; a list in which it finds
    something is then looked through.
    """
    stored: dict[int, tuple[object, tuple[object, int] | None]] = {}

    def put(value: object) -> tuple[object, int] | None:
        if id(value) not in stored:
            stored[id(value)] = value, store.put(value)
        return stored[id(value)][1]

    for unchecked in (True, False) if group.takes_unchecked else (False,):
        shares = dispatch(call, put, unchecked=unchecked)
        submitted = time.time()
        lazies = LazyArguments(call, shares, store.keep)
        try:
            return shares, lazies, group.prepare(_tasks(call, shares, lazies.reads)), submitted
        except UncheckedError:
            continue
    raise AssertionError("tasks were looked through, and were refused as unchecked")


def _tasks(call: Call, shares: Shares, reads: Sequence[TaskTransfer] | None) -> Sequence[Task]:
    """The distinct tasks of a call."""
    kind, spec, instance = call.kind, call.spec, call.component.instance
    on_loop = spec.on_loop and kind == "method"
    if kind == "method" and shares.arguments == [((), {})]:
        return [_bare_task(instance, call.name, call.target, call.deadline, (on_loop, call.eager))]
    return [
        Task(
            kind,
            instance,
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
            seconds=call.deadline,
            concurrent=spec.concurrent,
            mesh=call.mesh if kind == "create" else None,
            seed=call.seed,
            eager=call.eager,
            unchecked=shares.encoder.unchecked,
        )
        for index, (args, kwargs) in enumerate(shares.arguments)
    ]


@lru_cache(maxsize=1024)
def _bare_task(instance: str, name: str, method: str, seconds: float | None, options: tuple[bool, bool]) -> Task:
    """The task of a call without arguments; it is cached, so that a backend prepares it once."""
    on_loop, eager = options
    return Task("method", instance, name, method, on_loop=on_loop, seconds=seconds, eager=eager)


def part_of(whole: PendingCall, ranks: Sequence[int]) -> PendingCall:
    """The call on some of its ranks, as a call that ends with them; its value is that of the first one.

    Args:
        whole: The whole call.
        ranks: Called ranks, the one whose value counts first.
    """
    runtime, group = whole.origin
    spec = replace(whole.spec, collect="first", timeout=None, execute="all")
    call = replace(whole.call, spec=spec, component=replace(whole.call.component, ranks=tuple(ranks)))
    sent = SentTasks(call, group, [whole.reply(rank) for rank in ranks])
    part = PendingCall(
        runtime, call, sent, CallRecord(call.name, group.name, len(ranks)), [whole], repeats=True, prefetched=True
    )
    part.listen()
    return part


def method_call(
    component: Component,
    method: str,
    spec: FunctionSpec,
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    own_share: bool = False,
) -> Call:
    """The call of a remote function, from the line of the user that calls it; see `Call`."""
    name = f"{component.name}.{method}"
    return Call("method", component, method, name, spec, call_line(), names, args, kwargs, own_share)


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
    runtime, began, component = running(), time.perf_counter(), call.component
    if runtime.backend.group(component.group).undivided:
        call = replace(call, spec=collected_elsewhere(call.spec))
    if runtime.has_released(component):
        raise NotInitializedError(f"{call.name}: {component.instance!r} was released; build it again")
    load = None
    if call.spec.calls_one and not call.reads_ranks:
        call, load = runtime.loads.take(call)
    try:
        queue = runtime.in_flight.queue(call, call.deadline)
        ranks = len(call.ranks)
        sent = send(runtime, call)
    except BaseException:
        if load is not None:
            runtime.loads.end(load)
        raise
    record = runtime.stats.open(call.name, component.group, ranks, sent.submitted)
    record.driver_sent = sent.sent
    bare = call.without_arguments()
    pending = PendingCall(runtime, bare, sent, record, sent.sources, held=held, prefetched=prefetched)
    if call.spec.collective:
        pending.on_failures = partial(free_stuck_peers, pending)
    record.driver_seconds = time.perf_counter() - began
    if not prefetched and (task := RUNNING.get()) is not None:
        task.add(pending)
    if load is not None:
        pending.when_over(partial(runtime.loads.end, load))
    pending.listen()
    queue.add(pending)  # last: a session does not wait for a call that Ctrl-C has left halfway
    return pending

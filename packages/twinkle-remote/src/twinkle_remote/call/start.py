"""The path of every call, the same on every backend: bind, dispatch, submit to N ranks, collect."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy, calls_of
from twinkle_remote.call.pending.pending_call import PendingCall
from twinkle_remote.call.pending.stuck_peers import free_stuck_peers
from twinkle_remote.call.sent_tasks import send
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.protocol.call import Call
from twinkle_remote.sessions.collector import paused_for
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Kind
    from twinkle_remote.protocol.served import SentCall
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.sessions.runtime import Runtime


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
    spec = spec.of(component, method)
    kind: Kind = "generate" if spec.yields else "method"
    name = f"{component.name}.{method}"
    return Call(kind, component, method, name, spec, call_line(), names, args, kwargs, own_share, spec.yields)


def call_method(call: Call, itself: object, *, lazy: bool | None = None) -> Any:
    """Call a remote function of a component.

    Args:
        call: The call.
        itself: The caller's handle, or the component itself.
        lazy: Whether to return a lazy result; None follows the function's option, then the runtime's.

    Returns:
        A lazy result, or the value.
    """
    adds = call.spec.adds is not None
    if adds:
        from twinkle_remote.call.column_rules import rows_to_add_to, with_columns  # few functions add columns

        rows = rows_to_add_to(call)
    if lazy is None:
        lazy = running().lazy_collect if call.spec.lazy_collect is None else call.spec.lazy_collect
    pending = start(call if lazy or adds else replace(call, eager=True), held=True)
    if call.spec.sync:
        pending.wait()
    result: Lazy[Any] = Lazy(pending, itself)
    if adds:
        result = with_columns(call, rows, result)
    return result if lazy else result.result()


def start(call: Call, *, held: bool = False, prefetched: bool = False, at_once: bool = False) -> PendingCall:
    """Send a call, and return it in flight.

    It may fail before this returns, so what its caller does with a failure is given here, not after it.

    Args:
        call: The call.
        held: The caller waits for it, or makes a lazy result of it: a failure before that is not reported as unseen.
        prefetched: It is made ahead of its use, or nobody asks what becomes of it: its failure is never unseen.
        at_once: The caller does not wait until fewer calls are in flight.

    Raises:
        NotInitializedError: There is no session, or the component was released.
        DispatchError: The arguments cannot be divided as the function asks.
        CallTimeoutError: Too many calls are in flight: this one was not sent within its timeout.
        WorkerDiedError: The process that stores the arguments has ended; nothing was sent.
    """
    runtime, began, component = running(), time.perf_counter(), call.component
    if runtime.is_released(component.group, component.instance):
        raise NotInitializedError(f"{call.name}: {component.instance!r} was released; build it again")
    queue = runtime.in_flight.queue(call, 0.0 if at_once else call.deadline)
    ranks = len(call.ranks)
    with paused_for(ranks):
        sent, sources = _sent(runtime, call)
        record = runtime.stats.open(call.name, component.group, ranks, sent.submitted)
        record.driver_sent = sent.sent
        pending = PendingCall(runtime, call.without_arguments(), sent, record, sources)
    if call.spec.collective and runtime.served is None:
        pending.on_failures = partial(free_stuck_peers, pending)
    record.driver_seconds = time.perf_counter() - began
    pending.held, pending.prefetched = held, prefetched
    queue.add(pending)
    return pending


def _sent(runtime: Runtime, call: Call) -> tuple[SentCall, Sequence[PendingCall]]:
    """The call on its way, and the calls that make its arguments and are not done, or have failed."""
    if runtime.served is None:
        tasks = send(runtime, call)
        return tasks, tasks.sources
    sent = runtime.served.send(call)
    producers = dict.fromkeys([producer for lazy in sent.lazies for producer in calls_of(lazy)])
    for producer in producers:
        producer.handed_on = True
    return sent, [producer for producer in producers if not producer.done() or producer.failed()]

"""Starts a call that goes undivided to a backend, which dispatches and collects it elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.call.lazy import calls_of
from twinkle_remote.call.pending_rank_call import PendingRankCall
from twinkle_remote.call.pending_whole_call import PendingWholeCall
from twinkle_remote.failures.frames import driver_line
from twinkle_remote.protocol.whole_calls import WholeCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.messages import Kind
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.protocol.whole_calls import RankReplies, WholeReply
    from twinkle_remote.sessions.runtime import Runtime

_TIMED_BY_CALLER = ("item", "close")  # the steps of a generator, asked for ahead


def start_whole(
    runtime: Runtime,
    component: Component,
    kind: Kind,
    target: Any,
    name: str,
    spec: FunctionSpec,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    by_rank: bool = False,
    held: bool = False,
) -> PendingCall:
    """Send a call undivided; see `start` for the arguments and the errors. The backend takes such calls."""
    backend, began = runtime.whole, time.perf_counter()
    assert backend is not None
    ranks = component.ranks[:1] if spec.execute == "first" else component.ranks
    queue = runtime.in_flight.queue(component.group, ranks, name, spec.timeout)
    line = driver_line()
    timeout = spec.timeout if kind in _TIMED_BY_CALLER else None
    call = WholeCall(kind, component, target, name, args, kwargs, line, ranks, timeout, by_rank)
    reply = backend.call_by_rank(call) if by_rank else backend.call_whole(call)
    record = runtime.stats.open(name, component.group, len(ranks))
    record.driver_sent = reply.sent
    producers = {producer: None for lazy in call.lazies for producer in calls_of(lazy)}
    for producer in producers:
        producer.handed_on = True
    sources = [producer for producer in producers if not producer.done() or producer.failed()]
    pending: PendingCall
    if by_rank:
        replies = cast("RankReplies", reply)
        pending = PendingRankCall(runtime, component, name, spec, replies, line=line, record=record, sources=sources)
    else:
        whole = cast("WholeReply", reply)
        pending = PendingWholeCall(
            runtime, component, name, spec, whole, ranks=ranks, line=line, record=record, sources=sources
        )
    record.driver_seconds, pending.held = time.perf_counter() - began, held
    queue.add(pending)
    return pending

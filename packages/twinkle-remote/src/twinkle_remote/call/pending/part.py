"""A part of a call: the call on some of its ranks, as a call of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from twinkle_remote.call.pending.pending_call import PendingCall
from twinkle_remote.call.sent_tasks import SentTasks
from twinkle_remote.sessions.telemetry.stats import CallRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


def part_of(whole: PendingCall, ranks: Sequence[int], data_rank: int) -> PendingCall:
    """The call on some of its ranks, as a call that ends with them; its value is that of the first one.

    Args:
        whole: The whole call.
        ranks: Called ranks, the one whose value counts first.
        data_rank: Their data rank.
    """
    runtime, group = whole.origin
    spec = replace(whole.spec, collect="first", weight=None, timeout=None, execute="all")
    call = replace(whole.call, spec=spec, component=replace(whole.call.component, ranks=tuple(ranks)))
    sent = SentTasks(call, group, [whole.reply(rank) for rank in ranks])
    part = PendingCall(runtime, call, sent, CallRecord(call.name, group.name, len(ranks)), [whole])
    part.prefetched, part.failing.repeats, part.data_rank = True, True, data_rank
    return part

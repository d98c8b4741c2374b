"""A part of a call: the call on some of its ranks, as a call of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from twinkle_remote.call.pending_call import PendingCall
from twinkle_remote.sessions.stats import CallRecord

if TYPE_CHECKING:
    from collections.abc import Sequence


def part_of(call: PendingCall, ranks: Sequence[int], data_rank: int) -> PendingCall:
    """The call on some of its ranks, as a call that ends with them; its value is that of the first one.

    Args:
        call: The whole call.
        ranks: Called ranks, the one whose value counts first.
        data_rank: Their data rank.
    """
    runtime, group, line = call.origin
    part = PendingCall(
        runtime,
        group,
        call.name,
        replace(call.spec, collect="first", weight=None, timeout=None),
        call.mesh,
        [call.reply(rank) for rank in ranks],
        line=line,
        record=CallRecord(call.name, group.name, len(ranks)),
        sources=[call],
    )
    part.prefetched, part.repeats, part.data_rank = True, True, data_rank
    return part

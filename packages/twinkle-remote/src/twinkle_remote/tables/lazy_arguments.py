"""The lazy arguments of one call: planned at once if all their calls are done, otherwise once when they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.protocol.inputs import InputReplies
from twinkle_remote.tables.transfers import TransferPlan, plan_transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.backend import Reply
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.tables.transfers import TaskTransfer


class LazyArguments:
    """The lazy arguments of one call.

    Args:
        call: The call.
        shares: Its divided arguments.
        keep: Keeps a value for its workers, as `Store.keep` does.

    Attributes:
        inputs: The replies that its tasks wait for; empty if all outcomes are known.
        sources: The calls that make the arguments and are not done, or have failed.
        reads: What each distinct task reads; None if that is planned when the replies are there.
    """

    def __init__(self, call: Call, shares: Shares, keep: Callable[[object], tuple[object, int]]) -> None:
        self.inputs = InputReplies()
        self.reads: Sequence[TaskTransfer] | None = None
        encoder = shares.encoder
        plan = transfer_plan(call, shares)
        self.sources: Sequence[PendingCall] = [
            source for source in encoder.sources if not source.done() or source.failed()
        ]
        if self.sources:
            replies = [source.reply(rank) for source, rank in encoder.inputs]
            self.inputs = InputReplies(replies, _not_read(tuple(encoder.sources), replies), plan)
        else:
            outcomes = [source.outcome(rank) for source, rank in encoder.inputs]
            self.reads = plan_transfers(plan, outcomes, keep)


def transfer_plan(call: Call, shares: Shares) -> TransferPlan:
    """The plan that says, with the outcomes, which pieces each task of a call reads.

    Args:
        call: The call.
        shares: Its divided arguments; some are lazy.
    """
    encoder = shares.encoder
    return TransferPlan(
        call.name,
        tuple(encoder.lazies),
        tuple(map(tuple, encoder.of_share)),
        shares.count,
        shares.real,
        lists_only(call.spec),
        call.spec.balance if (shares.count or 1) > 1 else False,
        tuple(shares.parts) if shares.balanced else None,
    )


def lists_only(spec: FunctionSpec) -> bool:
    """Whether only lists among the lazy arguments are split."""
    return spec.dispatch == "slice" and spec.split is None


def _not_read(sources: Sequence[PendingCall], read: Sequence[Reply]) -> Sequence[Reply]:
    """Replies of the producer calls that are not read, but whose failure also fails this call."""
    known = set(map(id, read))
    return [reply for source in sources for reply in source.replies() if id(reply) not in known]

"""The answer of one rank as it is told to a client that reads ranks one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.http.nodes import NodeWriter, error_bytes, failure_texts
from twinkle_remote.http.registered import TYPES
from twinkle_remote.http.wire.encode import encode
from twinkle_remote.http.wire.envelopes import RankNews
from twinkle_remote.protocol.failure import Failure
from twinkle_remote.protocol.messages import Itself, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.http.wire.encode import NodeOf
    from twinkle_remote.protocol.backend import WorkerGroup

INLINE_BYTES = 16 * 1024
_RENEWED = "it has ended, and another worker has its rank, which has not what this call is for"


def rank_answer(call: PendingCall, rank: int, other: NodeOf, *, outlives: bool, inline: bool) -> RankNews:
    """What a client is told of the answer of one rank.

    Args:
        call: The call.
        rank: A rank that has answered.
        other: Describes handles.
        outlives: The result can be read when its worker has ended.
        inline: A small value goes with it.
    """
    outcome = call.outcome(rank)
    answer = RankNews(_figures(outcome))
    if outcome.failure is not None:
        answer.failure = failure_texts(outcome.failure)
        error = outcome.failure.exception()
        if error is not None:
            answer.error = error_bytes(error, TYPES, other)
        return answer
    if outlives:
        answer.outlives = True
    if inline and not outcome.ended and outcome.produced <= INLINE_BYTES:
        answer.value = _value(call, outcome, other)
    return answer


def renewed_answers(group: WorkerGroup, ranks: Sequence[int], renewed: Sequence[int]) -> list[RankNews]:
    """What a client is told of a call for workers that have ended, and whose ranks others have.

    Args:
        group: The group.
        ranks: The called ranks; none was called.
        renewed: Those that others have.
    """
    answers = []
    for rank in ranks:
        died = rank in renewed
        why = _RENEWED if died else "it was not called, because another rank of the call has ended"
        failure = Failure(group.info(rank).label(), "", "WorkerDiedError", why, died=died, upstream=not died)
        answers.append(RankNews(_figures(Outcome(rank)), failure=failure_texts(failure)))
    return answers


def _figures(outcome: Outcome) -> list[Any]:
    return [
        outcome.rank,
        outcome.rows,
        outcome.is_list,
        outcome.rows_given,
        outcome.total,
        outcome.ended,
        outcome.produced,
        outcome.fetched,
        outcome.started,
        outcome.seconds,
    ]


def _value(call: PendingCall, outcome: Outcome, other: NodeOf) -> bytes | None:
    try:
        value = call.fetch(outcome)
        if value is Itself.ITSELF:
            return None
        message = encode(value, TYPES, what=f"the result of {call.name}", named=NodeWriter(TYPES, other).node)
    except Exception:  # who reads the value is told
        return None
    return message.to_bytes() if message.nbytes <= INLINE_BYTES else None

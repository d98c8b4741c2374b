"""Which bytes of a call's lazy arguments go from which host to which; nothing is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.call.hand_over import plan_hand_over
from twinkle_remote.call.lazy_arguments import hand_over_plan
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.handed import HandedPiece
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.spec import FunctionSpec


class HostBytes(NamedTuple):
    """What goes from one host to another, or stays on one.

    Attributes:
        producer: The group that made it.
        source: Name of the host that holds it.
        target: Name of the host that reads it.
        nbytes: Its bytes, by the rows that are read; what several ranks of a host read counts once.
    """

    producer: str
    source: str
    target: str
    nbytes: int


def explain_moves(
    name: str, spec: FunctionSpec, shares: Shares, group_name: str, ranks: Sequence[int]
) -> tuple[HostBytes, ...] | None:
    """What a call's lazy arguments move; None where the calls that make them are not done, or have failed.

    Args:
        name: Class.method.
        spec: Options of the method.
        shares: Its divided arguments.
        group_name: The group that reads them.
        ranks: The called ranks.
    """
    encoder = shares.encoder
    if not encoder.handed:
        return ()
    if any(not call.done() or call.failed() for call in encoder.sources) or running().whole is not None:
        return None
    outcomes = [call.outcome(rank) for call, rank in encoder.inputs]
    infos = [call.origin[1].info(rank) for call, rank in encoder.inputs]
    made = {id(outcome.payload): (outcome, info) for outcome, info in zip(outcomes, infos, strict=True)}
    planned = plan_hand_over(hand_over_plan(name, spec, shares), outcomes)
    group = running().backend.group(group_name)
    moved: dict[tuple[str, str, str], int] = {}
    counted: set[tuple[int, int | None, int | None, str]] = set()
    for rank, index in zip(ranks, shares.of_rank, strict=True):
        target = group.info(rank).node
        for piece in [piece for value in planned[index].values for piece in value.pieces]:
            outcome, info = made[id(piece.payload)]
            once = (id(piece.payload), piece.start, piece.stop, target)
            if once not in counted:
                counted.add(once)
                way = (info.group, info.node, target)
                moved[way] = moved.get(way, 0) + _nbytes(piece, outcome)
    return tuple(HostBytes(*way, nbytes) for way, nbytes in moved.items())


def _nbytes(piece: HandedPiece, outcome: Outcome) -> int:
    if piece.start is None or piece.stop is None or not outcome.rows:
        return outcome.produced
    return outcome.produced * (piece.stop - piece.start) // outcome.rows


def moves_as_text(moves: Sequence[HostBytes] | None) -> list[str]:
    """A line for what crosses hosts and what stays; empty without lazy arguments."""
    if moves is None:
        return ["hand-over: not known until the calls that make the lazy arguments are done"]
    if not moves:
        return []
    crossing = [move for move in moves if move.source != move.target]
    across, all_bytes = (sum(move.nbytes for move in those) for those in (crossing, moves))
    head = f"hand-over: {across:,} of {all_bytes:,} bytes cross hosts"
    return [head, *(f"  {move.producer}: {move.source} -> {move.target} {move.nbytes:,}" for move in crossing)]

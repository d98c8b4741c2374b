"""Bytes of a call's lazy arguments that go from one host to another; nothing is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.call.tables.hand_over import plan_hand_over
from twinkle_remote.call.tables.lazy_arguments import hand_over_plan
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.handed import HandedPiece
    from twinkle_remote.protocol.messages import Outcome


class HostBytes(NamedTuple):
    """The bytes that go from one host to another, or stay on one.

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


def explain_moves(call: Call, shares: Shares) -> tuple[HostBytes, ...] | None:
    """The moves of a call's lazy arguments; None where the calls that make them are not done, or have failed.

    Args:
        call: The call.
        shares: Its divided arguments.
    """
    encoder = shares.encoder
    if not encoder.handed:
        return ()
    if any(not source.done() or source.failed() for source in encoder.sources) or running().served is not None:
        return None
    outcomes = [source.outcome(rank) for source, rank in encoder.inputs]
    infos = [source.origin[1].info(rank) for source, rank in encoder.inputs]
    made = {id(outcome.payload): (outcome, info) for outcome, info in zip(outcomes, infos, strict=True)}
    planned = plan_hand_over(hand_over_plan(call, shares), outcomes)
    group = running().backend.group(call.component.group)
    moved: dict[tuple[str, str, str], int] = {}
    counted: set[tuple[object, ...]] = set()
    for rank, index in zip(call.ranks, shares.of_rank, strict=True):
        target = group.info(rank).node
        for piece in [piece for value in planned[index].values for piece in value.all_pieces()]:
            if id(piece.payload) not in made:  # a plain value of a table
                continue
            outcome, info = made[id(piece.payload)]
            once = (id(piece.payload), *piece[1:], target)
            if once not in counted:
                counted.add(once)
                way = (info.group, info.node, target)
                moved[way] = moved.get(way, 0) + _nbytes(piece, outcome)
    return tuple(HostBytes(*way, nbytes) for way, nbytes in moved.items())


def _nbytes(piece: HandedPiece, outcome: Outcome) -> int:
    rows = piece.length()
    return outcome.produced if rows is None or not outcome.rows else outcome.produced * rows // outcome.rows


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

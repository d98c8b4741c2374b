"""Bytes of a call's lazy arguments that go from one host to another; nothing is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.sessions.current import running
from twinkle_remote.tables.lazy_arguments import transfer_plan
from twinkle_remote.tables.nodes import leaves
from twinkle_remote.tables.transfers import plan_transfers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.tables.nodes import StoredRows


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
    if not encoder.lazies:
        return ()
    if any(not source.done() or source.failed() for source in encoder.sources):
        return None
    outcomes = [source.outcome(rank) for source, rank in encoder.inputs]
    infos = [source.origin[1].info(rank) for source, rank in encoder.inputs]
    made = {id(outcome.payload): (outcome, info) for outcome, info in zip(outcomes, infos, strict=True)}
    planned = plan_transfers(transfer_plan(call, shares), outcomes)
    group = running().backend.group(call.component.group)
    moved: dict[tuple[str, str, str], int] = {}
    counted: set[tuple[object, ...]] = set()
    for rank, index in zip(call.ranks, shares.of_rank, strict=True):
        target = group.info(rank).node
        for stored in [one for value in planned[index].values if value.node is not None for one in leaves(value.node)]:
            if id(stored.payload) not in made:  # a plain value of a table
                continue
            outcome, info = made[id(stored.payload)]
            once = (id(stored.payload), stored.rows, target)
            if once not in counted:
                counted.add(once)
                way = (info.group, info.node, target)
                moved[way] = moved.get(way, 0) + _nbytes(stored, outcome)
    return tuple(HostBytes(*way, nbytes) for way, nbytes in moved.items())


def _nbytes(stored: StoredRows, outcome: Outcome) -> int:
    rows = stored.rows
    return outcome.produced if rows is None or not outcome.rows else outcome.produced * len(rows) // outcome.rows


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

"""Rows that a client names by result and rank, as lazy results of this session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.assembled import ResultRows, assemble
from twinkle_remote.errors import DispatchError
from twinkle_remote.http.server.results import CallOutcome
from twinkle_remote.http.wire.errors import WireFormatError
from twinkle_remote.streams.chunk_result import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.lazy import Lazy
    from twinkle_remote.http.server.clients import RemoteClient


def rows_named(client: RemoteClient, pieces: object) -> Lazy[Any]:
    """The lazy result of named rows: for each piece the result's name, the rank, first row and one past the last.

    Without a rank they are rows of the whole result. One piece may have no rows given: then it is what its rank made.

    Raises:
        RefusedError: The client has no such result.
        WireFormatError: They are no names of rows.
    """
    if not isinstance(pieces, list) or not pieces or not all(_is_piece(piece) for piece in pieces):
        raise WireFormatError("rows are a list of pieces: result, rank, start, stop")
    if len(pieces) == 1 and pieces[0][2] is None:
        return piece_named(client, *pieces[0][:2])
    try:
        return assemble([rows for piece in pieces for rows in _rows(client, piece)])
    except (ValueError, DispatchError) as error:
        raise WireFormatError(str(error)) from None


def _is_piece(piece: object) -> bool:
    return isinstance(piece, list) and len(piece) == 4


def piece_named(client: RemoteClient, name: object, rank: object) -> Lazy[Any]:
    """The lazy result of what one rank made; raises as `rows_named`."""
    found = _outcome(client, name)
    return found.piece(_rank(found, rank))


def _rows(client: RemoteClient, piece: Sequence[Any]) -> Sequence[ResultRows]:
    if not all(type(part) is int for part in piece[2:]):
        raise WireFormatError("rows have a start and a stop")
    found = _outcome(client, piece[0])
    if piece[1] is not None:
        return [ResultRows(found.call, _rank(found, piece[1]), piece[2], piece[3])]
    rows = pieces_of(found.lazy, piece[2], piece[3])
    if not rows:
        raise WireFormatError(f"the rows of {found.call.name} cannot be counted")
    return rows


def _rank(found: CallOutcome, rank: object) -> int:
    if type(rank) is not int or rank not in found.call.ranks:
        raise WireFormatError(f"{rank!r:.20} is no rank of this result")
    return rank


def _outcome(client: RemoteClient, name: object) -> CallOutcome:
    found = client.result(str(name))
    if not isinstance(found, CallOutcome):
        raise WireFormatError("this result has no ranks")
    return found

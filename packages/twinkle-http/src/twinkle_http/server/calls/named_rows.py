"""Rows that a client names by result and rank, as lazy results of this session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_http.server.calls.served_call import ServedCall
from twinkle_http.wire.errors import WireFormatError
from twinkle_remote.backends.serving import rows_of_results
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_http.server.clients.clients import RemoteClient
    from twinkle_remote import Lazy


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
        return rows_of_results([_rows(client, piece) for piece in pieces])
    except (ValueError, DispatchError) as error:
        raise WireFormatError(str(error)) from None


def _is_piece(piece: object) -> bool:
    return isinstance(piece, list) and len(piece) == 4


def piece_named(client: RemoteClient, name: object, rank: object) -> Lazy[Any]:
    """The lazy result of what one rank made; raises as `rows_named`."""
    found = _outcome(client, name)
    return found.piece(_rank(found, rank))


def _rows(client: RemoteClient, piece: Sequence[Any]) -> tuple[Lazy[Any], int | None, int, int]:
    name, rank, start, stop = piece
    if type(start) is not int or type(stop) is not int:
        raise WireFormatError("rows have a start and a stop")
    found = _outcome(client, name)
    return found.lazy, None if rank is None else _rank(found, rank), start, stop


def _rank(found: ServedCall, rank: object) -> int:
    if type(rank) is not int or rank not in found.call.ranks:
        raise WireFormatError(f"{rank!r:.20} is no rank of this result")
    return rank


def _outcome(client: RemoteClient, name: object) -> ServedCall:
    found = client.result(str(name))
    if not isinstance(found, ServedCall):
        raise WireFormatError("this result has no ranks")
    return found

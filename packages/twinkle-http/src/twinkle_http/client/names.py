"""Names in a request: lazy results, rows of them, and handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_http.client.replies import RankReply, ServedPayload, ServedReply
from twinkle_http.wire.errors import WireTypeError
from twinkle_remote import Lazy, is_handle
from twinkle_remote.backends.support import RunsOnce, hand_over, is_table, plan_of
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol import component_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_http.wire.encode import TagOf
    from twinkle_remote.protocol import RowsOfRank


def namer(what: str, lazies: list[Any]) -> TagOf:
    """Describes the lazy results and the handles among the arguments of a call.

    Args:
        what: Name of the call, for errors.
        lazies: Takes the lazy results.
    """

    def node(value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
        if type(value) is Lazy and is_table(value):
            return ["table", part(plan_of(value))]
        if type(value) is Lazy:
            lazies.append(value)
            return _node_of(value)
        if isinstance(value, RunsOnce):
            raise DispatchError(f"{what}: {value!r} runs once and stays here: give its items, or list(x)")
        if is_handle(value):
            component = component_of(value)
            assert component is not None
            return ["handle", component.group, component.instance]
        return None

    return node


def rows_named(pieces: Sequence[RowsOfRank]) -> list[list[Any]]:
    """The names of rows of several ranks."""
    return [[*_name(payload), start, stop] for payload, start, stop in pieces]


def _name(payload: object) -> tuple[str, int | None]:
    """The result's name, and the rank; None for the whole result."""
    assert isinstance(payload, ServedPayload)
    return payload.result.name, payload.rank


def _name_of(reply: RankReply | ServedReply) -> tuple[str, int | None]:
    return (reply.result.name, reply.rank) if isinstance(reply, RankReply) else (reply.name, None)


def _node_of(lazy: Lazy[Any]) -> list[Any]:
    inputs, how = hand_over(lazy, 0)
    replies = [call.reply(rank) for call, rank in inputs]
    served = [reply for reply in replies if isinstance(reply, RankReply | ServedReply)]
    if len(served) == len(replies) and how.windows is not None:
        windows = zip(served, how.windows, strict=True)
        return ["rows", [[*_name_of(reply), start, stop] for reply, (start, stop) in windows]]
    if len(served) == len(replies) == 1 and how.how == "one":
        name, rank = _name_of(served[0])
        return ["lazy", name] if rank is None else ["piece", name, rank]
    raise WireTypeError(f"{lazy!r} is no result of this server: pass its value, get(x)")

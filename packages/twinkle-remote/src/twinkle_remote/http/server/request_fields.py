"""Fields of a client's request, checked where they are used; each raises WireFormatError for what it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from twinkle_remote.http.wire.envelopes import CallRequest
    from twinkle_remote.protocol.component import Component


def arguments_of(request: CallRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the keyword arguments."""
    args, kwargs = request.args, request.kwargs
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise WireFormatError("args are a list, and kwargs a dict")
    return tuple(args), kwargs


def ranks_of(component: Component, request: CallRequest) -> tuple[int, ...]:
    """The ranks that a request calls."""
    ranks = request.ranks
    if not isinstance(ranks, list) or not ranks or not set(component.ranks).issuperset(_whole(ranks)):
        raise WireFormatError(f"ranks are some of {component.name}'s")
    return tuple(ranks)


def _whole(ranks: list[Any]) -> list[Any]:
    return [rank if type(rank) is int else None for rank in ranks]


def timeout_of(request: CallRequest) -> float | None:
    """Seconds to the deadline that the caller gave; None without one."""
    found = request.timeout
    if found is not None and (not isinstance(found, int | float) or isinstance(found, bool) or not found > 0):
        raise WireFormatError("a timeout is seconds above 0")
    return found


def pair_of(target: Any) -> tuple[str, str]:
    """The method of a generator, and its key."""
    if not isinstance(target, list) or len(target) != 2:
        raise WireFormatError("a generator has a method and a key")
    return str(target[0]), str(target[1])

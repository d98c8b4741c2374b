"""Rank orders: the default, and Megatron's spelling of any other ("tp-cp-ep-dp-pp", innermost first)."""

from __future__ import annotations

from ._messages import either

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT = ("fsdp", "pp", "dp", "cp", "tp")
EXPERT_DIMS = ("ep_shard", "ep", "etp")
_EXPERT_NAMES = {"dp": "ep_shard", "ep": "ep", "tp": "etp"}
_TOKENS = ("tp", "cp", "ep", "dp", "pp", "fsdp")


def parse(order: str, ep_size: int, given: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read an order string; return all dims and the expert dims, both outermost first.

    A name of `given` (dims larger than 1) has to be in the order, as in Megatron; only fsdp, which Megatron does not
    know, goes outermost when it is left out. Other names that are left out go outermost.

    Raises:
        ValueError: for an unknown or repeated name, or one that is needed and missing.
    """
    tokens = order.lower().split("-")
    for token in tokens:
        if token not in _TOKENS:
            raise ValueError(f"order={order!r} holds {token!r}; {either(_TOKENS)} would, joined by '-'")
        if tokens.count(token) > 1:
            raise ValueError(f"order={order!r} names {token!r} twice; once would")
    needed = [name for name in given if name != "fsdp"] + (["ep"] if ep_size > 1 else [])
    for name in needed:
        if name not in tokens:
            raise ValueError(
                f"order={order!r} does not place {name}, which is larger than 1; {order}-{name} would"
            )
    tokens += [name for name in _TOKENS if name not in tokens and name != "fsdp"]
    if "fsdp" not in tokens:
        tokens.append("fsdp")
    outward = tuple(reversed(tokens))
    dense = tuple(name for name in outward if name != "ep")
    return dense, tuple(_EXPERT_NAMES[name] for name in outward if name in _EXPERT_NAMES)

"""Orders of dims: the default one, and others in Megatron's spelling ("tp-cp-ep-dp-pp", innermost first)."""

from __future__ import annotations

from .messages import use_one_of
from .rule_error import RuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


DEFAULT = ("fsdp", "pp", "dp", "cp", "tp")
EXPERT_DIMS = ("ep_shard", "ep", "etp")
_TOKENS = ("tp", "cp", "ep", "dp", "pp", "fsdp")


def parse(order: str, ep_size: int, given: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read an order string; return all dims and the expert dims, both outermost first.

    As in Megatron, whatever is larger than 1 has to be in the order, and ep_shard stands where dp stands. Megatron does
    not know fsdp: it goes outermost when it is left out, as it does by default, and an order without dp has ep_shard
    where fsdp stands.

    Args:
        order: Dims innermost first, joined by "-".
        ep_size: Expert parallel ranks.
        given: The dims that are larger than 1.

    Raises:
        ValueError: for an unknown or repeated name, or one that is needed and missing.
    """
    if not isinstance(order, str):
        raise ValueError(f"order={order!r} must be a text such as 'tp-cp-ep-dp-pp'")
    tokens = order.lower().split("-")
    for token in tokens:
        if token not in _TOKENS:
            raise ValueError(f"order={order!r} holds {token!r}; {use_one_of(_TOKENS)}, joined by '-'")
        if tokens.count(token) > 1:
            raise ValueError(f"order={order!r} names {token!r} twice; name it once")
    needed = [*given, *(["ep"] if ep_size > 1 else [])]
    missing = [name for name in needed if name not in tokens and name != "fsdp"]
    if missing:
        longer = "-".join([order, *missing])
        raise RuleError(
            f"order={order!r} does not place {missing[0]}, which is larger than 1", {"order": [longer]}, named=False
        )
    shard = "fsdp" if "fsdp" in tokens and "dp" not in tokens else "dp"
    tokens += [name for name in _TOKENS if name not in tokens]
    outward = tokens[::-1]
    experts = {shard: "ep_shard", "ep": "ep", "tp": "etp"}
    return (
        tuple([name for name in outward if name != "ep"]),
        tuple([experts[name] for name in outward if name in experts]),
    )


def inferred_expert_order(names: Sequence[str], factors: Sequence[Sequence[tuple[int, int]]]) -> tuple[str, ...]:
    """Return the expert dims of a mesh without an explicit order, outermost first.

    ep is next inside what shards the experts' data, as in Megatron's orders, and these take the places of dp and tp:
    the stride says which of the two is outside. A dim of one rank has no stride; then etp is innermost, as by default.
    """
    steps = {name: max([step for _, step in own], default=0) for name, own in zip(names, factors, strict=True)}
    data = next((steps[name] for name in ("dp", "fsdp", "dp_shard", "dp_replicate") if steps.get(name)), 0)
    return ("etp", "ep_shard", "ep") if 0 < data < steps.get("tp", 0) else EXPERT_DIMS


def canonical_expert_order(
    order: tuple[str, ...], inferred: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[str, ...] | None:
    """Return an expert order with dims of size 1 first; None where the inferred order gives the same view."""
    if set(order) != set(EXPERT_DIMS):
        raise ValueError(f"expert_order={order} must name ep_shard, ep and etp, outermost first")
    given = large_dims(order, sizes)
    if given == large_dims(inferred, sizes):
        return None
    return (*(name for name in EXPERT_DIMS if name not in given), *given)


def large_dims(order: Iterable[str], sizes: Mapping[str, int]) -> list[str]:
    """Return the dims of sizes above 1 in the given order."""
    return [name for name in order if sizes[name] > 1]

"""From the results of the workers to one value.

On a mesh each data rank counts once, in data order: copies on tensor, context and pipeline peers are not data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import CollectError
from twinkle_remote.reduce import reduce
from twinkle_remote.split import join, rows_of, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.spec import Collect, FunctionSpec, Weight


def ranks_read(collect: Collect, ranks: Sequence[int], mesh: DeviceMesh | None) -> Sequence[int]:
    """The called ranks whose values a collect reads, in the order in which it reads them."""
    if collect == "first":
        return ranks[:1]
    if collect == "none" or callable(collect) or mesh is None or len(ranks) != mesh.world_size:
        return ranks
    return mesh.collect_ranks


def how_made(spec: FunctionSpec, ranks: Sequence[int]) -> Any:
    """How the values that were read make one: "rows", "list", "one", or the collect itself."""
    if spec.collect == "first" or (spec.collect == "none" and len(ranks) == 1):
        return "one"
    if spec.collect in ("none", "last_pp"):
        return "list"
    return "rows" if spec.collect == "flatten" else spec.collect


def combine(
    how: Any,
    values: Sequence[Any],
    *,
    name: str,
    mesh: DeviceMesh | None,
    weight: Weight | None = None,
    rows_given: Sequence[int | None] = (),
    rows: int | None = None,
) -> Any:
    """Make one value of those that were read.

    Args:
        how: What `how_made` said.
        values: In the order of `ranks_read`; never mutated.
        name: Class.method, for messages.
        mesh: For a callable collect.
        weight: Weight of a mean or sum.
        rows_given: Rows that each of the values' ranks was given, for weight "rows".
        rows: Joined rows that count; what padding added behind them is dropped. None means all.

    Raises:
        CollectError: The values do not fit the collect.
    """
    if how == "one":
        return values[0]
    if how == "list":
        return list(values)
    if callable(how):
        return how(list(values), mesh)
    if how == "rows":
        joined = join(values, f"{name} result")
        return joined if rows is None else _unpadded(joined, rows)
    return reduce(how, values, _weights(weight, values, rows_given, name), f"{name} result")


def _unpadded(value: Any, rows: int) -> Any:
    have = rows_of(value, "result")
    return value if have is None or have <= rows else take(value, 0, rows)


def _weights(
    weight: Weight | None, values: Sequence[Any], rows_given: Sequence[int | None], name: str
) -> Sequence[float] | None:
    if weight is None:
        return None
    if callable(weight):
        return [float(weight(value)) for value in values]
    if any(rows is None for rows in rows_given):
        raise CollectError(f"{name}: weight='rows' weighs by the rows that each rank was given, but nothing was split")
    return [float(rows or 0) for rows in rows_given]

"""Combines the results of the workers into one value.

On a mesh each data rank counts once, in data order: copies on tensor, context and pipeline peers are not data. If the
workers received rows of their own (dispatch "slice" on a mesh), each worker counts, in rank order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.uneven import real_rows
from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.values.columns import columns
from twinkle_remote.values.join import join_columns, join_results
from twinkle_remote.values.reduce import reduce
from twinkle_remote.values.rows import rows_of, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.spec import FunctionSpec, Weight


def ranks_read(spec: FunctionSpec, ranks: Sequence[int], mesh: DeviceMesh | None, *, each: bool) -> Sequence[int]:
    """The called ranks whose values a collect reads, in its reading order.

    Args:
        spec: Options of the function.
        ranks: Ranks that were called, ascending.
        mesh: Mesh of the component, or None.
        each: Every called rank received rows of its own.
    """
    if spec.collect == "first":
        return ranks[:1]
    if spec.collect == "none" or callable(spec.collect) or mesh is None or len(ranks) != mesh.world_size:
        return ranks
    return ranks if each and spec.collect != "last_pp" else mesh.collect_ranks


def combine_rule(spec: FunctionSpec, ranks: Sequence[int]) -> Any:
    """The rule that combines the values: "rows", "columns", "list", "one", or the collect itself."""
    if spec.collect == "first" or (spec.collect == "none" and len(ranks) == 1):
        return "one"
    if spec.collect in ("none", "last_pp"):
        return "list"
    if spec.collect == "flatten":
        return "columns" if spec.columns else "rows"
    return spec.collect


def combine(
    how: Any,
    values: Sequence[Any],
    *,
    name: str,
    mesh: DeviceMesh | None,
    weight: Weight | None = None,
    rows_given: Sequence[int | None] = (),
    rows: int | None = None,
    untold: bool = False,
) -> Any:
    """Combine the values into one.

    Args:
        how: Result of `combine_rule`.
        values: Values in the order of `ranks_read`; never mutated.
        name: Class.method, for messages.
        mesh: Mesh for a callable collect.
        weight: Weight of a mean or sum. None weighs a mean by rows if the call divided rows.
        rows_given: Rows that the rank of each value received.
        rows: Rows that the caller gave, if the call may have repeated some: the results of these are dropped. None
            means that all count.
        untold: The return annotation does not say whether the elements of a tuple are rows or parts.

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
        if untold and len(values) > 1:
            _refuse_tuples(values, name)
        return _unpadded(join_results(values, f"{name} result"), values, rows_given, rows, name)
    if how == "columns":
        parts = zip(join_columns(values, f"{name} result"), zip(*values, strict=True), strict=True)
        return tuple(_unpadded(joined, part, rows_given, rows, name) for joined, part in parts)
    told = [count for count in rows_given if count is not None]
    if rows is not None and len(told) == len(rows_given):
        rows_given = real_rows(told, rows)
    return reduce(how, values, _weights(how, weight, values, rows_given, name), f"{name} result")


def _refuse_tuples(values: Sequence[Any], name: str) -> None:
    """Refuse tuples, whose elements may be rows or parts, whatever their number is; an empty one has neither."""
    sizes = [len(value) if isinstance(value, tuple) and columns(value) is None else None for value in values]
    if any(sizes):
        shown = ", ".join("no tuple" if size is None else f"a tuple of {size}" for size in sizes[:4])
        raise CollectError(
            f"{name}: flatten joins rows, and whether the elements of a tuple are rows or parts is not told (the ranks "
            f"returned {shown}); return a list of rows, or annotate the method: '-> tuple[X, Y]' joins each part by "
            "itself, '-> tuple[X, ...]' says that these are rows"
        )


def _unpadded(joined: Any, values: Sequence[Any], rows_given: Sequence[int | None], rows: int | None, name: str) -> Any:
    """The joined values without the results of repeated rows, which are the last ones."""
    if rows is None:
        return joined
    try:
        made = [rows_of(value, "result") for value in values]
    except DispatchError as error:
        raise CollectError(f"{name}: {error}") from error
    told = rows_given or [None] * len(values)
    given = [own or 0 if count is None else count for count, own in zip(told, made, strict=True)]
    if sum(given) <= rows:
        return joined
    if made != given and any(count is not None for count in made):
        raise CollectError(
            f"{name}: uneven='pad' drops the results of repeated rows, so a method returns one row for each that it is "
            f"given, but for {given} rows, of which the last {sum(given) - rows} are repeated, the ranks returned "
            f"{made}; return one row for each, or use another 'uneven' or 'collect'"
        )
    return joined if made != given else take(joined, 0, rows)


def _weights(
    how: str, weight: Weight | None, values: Sequence[Any], rows_given: Sequence[int | None], name: str
) -> Sequence[float] | None:
    """The weight of each value; None if all weights are equal.

    A mean is weighed by rows if the call divided rows. If the call had no rows at all, all weights are equal.
    """
    if callable(weight):
        return [float(weight(value)) for value in values]
    if weight is None and how == "mean" and None not in rows_given and any(rows_given):
        weight = "rows"
    if weight != "rows":
        return None
    if any(rows is None for rows in rows_given):
        raise CollectError(f"{name}: weight='rows' weighs by the rows that each rank was given, but nothing was split")
    return [float(rows or 0) for rows in rows_given]

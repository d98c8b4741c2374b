"""Combines the results of the workers into one value.

On a mesh each data rank counts once, in data order: copies on tensor, context and pipeline peers are not data. If the
workers received rows of their own (dispatch "slice" on a mesh), each worker counts, in rank order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.even_work import order_back
from twinkle_remote.call.uneven import real_rows
from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.protocol.handed import HandOver
from twinkle_remote.values.columns import columns, is_numbered, renumbered
from twinkle_remote.values.join import check_columns, join_columns, join_results
from twinkle_remote.values.picking import pick
from twinkle_remote.values.reduce import reduce
from twinkle_remote.values.rows import rows_of, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.spec import FunctionSpec, Weight
    from twinkle_remote.protocol.tables import Rows


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


def combined_by(spec: FunctionSpec, ranks: Sequence[int], mesh: DeviceMesh | None) -> HandOver:
    """The way in which values of called ranks are combined into one, as when they are handed to another call.

    Args:
        spec: Options of the function.
        ranks: Ranks that were called, ascending.
        mesh: Mesh of the component, or None.
    """
    how, padded = combine_rule(spec, ranks), spec.uneven == "pad"
    columns_unknown = how == "rows" and spec.columns is None  # whether the elements of a tuple are rows
    return HandOver(0, len(ranks), how, mesh, spec.weight, padded, columns_unknown=columns_unknown)


def combine(
    by: HandOver,
    values: Sequence[Any],
    *,
    name: str,
    rows_given: Sequence[int | None] = (),
    rows: int | None = None,
    numbers: Sequence[Rows | None] = (),
) -> Any:
    """Combine the values into one.

    Args:
        by: How. Without a weight, a mean is weighed by rows if the call divided rows.
        values: Values in the order of `ranks_read`; never mutated.
        name: Class.method, for messages.
        rows_given: Rows that the rank of each value received.
        rows: Rows that the caller gave, if the call may have repeated some: the results of these are dropped. None
            means that all count.
        numbers: The numbers of the rows that the rank of each value received, if they were divided by costs: the joined
            rows are put into their order. None, or empty, where they follow each other.

    Raises:
        CollectError: The values do not fit the collect.
    """
    how = by.how
    if how == "one":
        return values[0]
    if how == "list":
        return list(values)
    if callable(how):
        return how(list(values), by.mesh)
    if how == "rows":
        if by.columns_unknown and len(values) > 1:
            refuse_tuples(values, name)
        joined = join_results(_unpadded(values, rows_given, rows, name), f"{name} result")
        return _in_order(joined, values, numbers, name)
    if how == "columns":
        check_columns(values, f"{name} result")
        parts = [_unpadded(part, rows_given, rows, name) for part in zip(*values, strict=True)]
        columns_of = join_columns(list(zip(*parts, strict=True)) or values, f"{name} result")
        own = zip(*values, strict=True)
        return tuple(_in_order(part, of, numbers, name) for part, of in zip(columns_of, own, strict=True))
    counts = [count for count in rows_given if count is not None]
    if rows is not None and len(counts) == len(rows_given):
        rows_given = real_rows(counts, rows)
    return reduce(how, values, _weights(how, by.weight, values, rows_given, name), f"{name} result")


def refuse_tuples(values: Sequence[Any], name: str) -> None:
    """Refuse tuples, whose elements may be rows or parts, whatever their number is; an empty one has neither."""
    sizes = [len(value) if isinstance(value, tuple) and columns(value) is None else None for value in values]
    if any(sizes):
        shown = ", ".join("no tuple" if size is None else f"a tuple of {size}" for size in sizes[:4])
        raise CollectError(
            f"{name}: flatten joins rows, and whether the elements of a tuple are rows or parts is unknown (the ranks "
            f"returned {shown}); return a list of rows, or annotate the method: '-> tuple[X, Y]' joins each part by "
            "itself, '-> tuple[X, ...]' says that these are rows"
        )


def _unpadded(values: Sequence[Any], rows_given: Sequence[int | None], rows: int | None, name: str) -> Sequence[Any]:
    """The values without the results of repeated rows, which are the last ones."""
    if rows is None:
        return values
    try:
        made = [rows_of(value, "result") for value in values]
    except DispatchError as error:
        raise CollectError(f"{name}: {error}") from error
    counts = rows_given or [None] * len(values)
    given = [own or 0 if count is None else count for count, own in zip(counts, made, strict=True)]
    if sum(given) <= rows:
        return values
    if made != given and any(count is not None for count in made):
        raise CollectError(
            f"{name}: uneven='pad' drops the results of repeated rows, so a method returns one row for each that it is "
            f"given, but for {given} rows, of which the last {sum(given) - rows} are repeated, the ranks returned "
            f"{made}; return one row for each, or use another 'uneven' or 'collect'"
        )
    if made != given:
        return values
    return [take(value, 0, count) for value, count in zip(values, real_rows(given, rows), strict=True)]


def _in_order(joined: Any, values: Sequence[Any], numbers: Sequence[Rows | None], name: str) -> Any:
    """The joined rows in the order of the rows that the ranks were given; `combine` has the arguments."""
    known = [rows for rows in numbers if rows is not None]
    if not known or len(known) < len(values):
        return joined
    made = [rows_of(value, "result") for value in values]
    given = [len(rows) for rows in known]
    if made != given:
        raise CollectError(
            f"{name}: balance= puts results into the order of the rows, so a method returns one row for each that it "
            f"is given, but for {given} rows the ranks returned {made}; return one row for each, or use balance=False"
        )
    ordered = pick(joined, order_back(known))
    begin_anew = [is_numbered(value) for value, rows in zip(values, known, strict=True) if rows]
    return renumbered(ordered) if begin_anew and all(begin_anew) else ordered


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

"""The columns of a call's first divided argument: those that it reads are sent, and those that it adds are joined."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.arguments import Replicated, is_divided
from twinkle_remote.call.lazy_values.get import get
from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.call.tables.table import added_rows, narrowed_lazy, with_narrow_constants
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.tables import Reads
from twinkle_remote.values.columns import columns
from twinkle_remote.values.picking import column_names, count_rows
from twinkle_remote.values.rows import may_have_rows
from twinkle_remote.values.wanted_columns import no_columns, only_read

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.column_rule import ColumnRule
    from twinkle_remote.protocol.spec import Divided


def narrowed(call: Call, *, lazies: bool = True) -> Call:
    """The call with only those columns of its first divided argument that its function reads, and marks of the others.

    Args:
        call: The call.
        lazies: Lazy arguments too; else only plain ones and the plain rows of tables, where another session narrows
            the lazy ones.

    Raises:
        NoTableError: The argument has no columns, and the function names them in any case.
        TypeError: The rule of the columns does not fit the call.
    """
    found = _divided(call)
    if found is None or isinstance(found.value, Replicated):
        return call
    names = columns_read(call)
    if names is None:
        return call
    reads = Reads(names, call.name)
    if isinstance(found.value, Lazy):
        value: Any = (narrowed_lazy if lazies else with_narrow_constants)(found.value, reads)
        if value is found.value:
            return call
    else:
        if call.spec.reads is not None and call.spec.reads.is_for_columns:
            _check_columns(call, found, "reads=")
        value = only_read(found.value, reads, keeps_rows=True)
    if isinstance(found.key, int):
        return replace(call, args=(*call.args[: found.key], value, *call.args[found.key + 1 :]))
    return replace(call, kwargs={**call.kwargs, found.key: value})


def columns_read(call: Call) -> tuple[Hashable, ...] | None:
    """The columns that a call reads of its first divided argument; None for all.

    Raises:
        TypeError: The rule of the columns does not fit the call.
    """
    return _columns_of(call.spec.reads, call)


def columns_added(call: Call) -> tuple[Hashable, ...] | None:
    """The columns that a call adds, which its workers keep; None for whole results.

    Raises:
        TypeError: The rule of the columns does not fit the call.
    """
    return _columns_of(call.spec.adds, call)


def rows_to_add_to(call: Call) -> Any:
    """The rows to which a call adds columns; they are checked before anything is sent.

    Raises:
        NoTableError: The argument has no columns.
        DispatchError: No argument has rows that are divided, or columns of it go whole.
    """
    found = _divided(call)
    if found is None or isinstance(found.value, Replicated):
        where = "the call has none" if found is None else f"{found.name} is marked to go whole"
        raise DispatchError(f"{call.name}: adds= joins columns to the first divided argument with rows, and {where}")
    if isinstance(found.value, Lazy):
        return found.value
    _check_columns(call, found, "adds=")
    lazy = [name for name, part in (columns(found.value) or {}).items() if isinstance(part, Lazy)]
    if lazy:
        raise DispatchError(
            f"{call.name}: adds= joins columns to rows, and the columns {', '.join(map(repr, lazy))} of {found.name} "
            "are lazy results: pass one lazy value (twinkle.join), or get(...)"
        )
    try:
        count_rows(found.value, "adds=")
    except DispatchError as error:
        raise DispatchError(f"{call.name}: adds= joins columns to the rows of {found.name}: {error}") from error
    return found.value


def with_columns(call: Call, rows: Any, result: Lazy[Any]) -> Lazy[Any]:
    """The rows joined with the columns that a call adds; nothing moves.

    Args:
        call: The call.
        rows: What `rows_to_add_to` returned.
        result: The lazy result of the call, of these columns alone.
    """
    names = columns_added(call)
    assert names is not None, "rows_to_add_to has found the argument"
    return added_rows(rows, result, names)


def _columns_of(rule: ColumnRule | None, call: Call) -> tuple[Hashable, ...] | None:
    """The columns that a rule names; it is given the values of lazy arguments, for which this waits."""
    found = None if rule is None else _divided(call)
    if rule is None or found is None:
        return None
    given = {**dict(zip(call.names, call.args, strict=True)), **call.kwargs}
    known: dict[str, Any] = {}
    for name in rule.asked_of(call.name, found.name, given):
        if name not in given:  # a default
            continue
        value = get(given[name].value if isinstance(given[name], Replicated) else given[name])
        if not is_divided(call.spec, name, given[name]) or not may_have_rows(value):
            known[name] = value
        elif rule.names_argument(name):
            raise TypeError(
                f"{rule.word}= of {call.name} is a function of {name}, whose rows are divided, so that each worker has "
                f"others: name it in replicate=, or mark it with Replicate(value); got {type(value).__name__} "
                f"{value!r:.40}"
            )
    return rule.columns(call.name, found.name, known)


def _divided(call: Call) -> Divided | None:
    return call.spec.divided(call.names, call.args, call.kwargs, _has_rows)


def _has_rows(value: Any) -> bool:
    if isinstance(value, Replicated):
        return may_have_rows(value.value)
    return isinstance(value, Lazy) or may_have_rows(value)


def _check_columns(call: Call, found: Divided, word: str) -> None:
    if column_names(found.value) is None:
        raise no_columns(call.name, word, found.name, found.value)

"""The body of a remote function with `reads=` or `adds=`: the function, and what these words say, wherever it runs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.errors import DispatchError, UnreadColumnError
from twinkle_remote.protocol.component import reads_of
from twinkle_remote.protocol.tables import Reads
from twinkle_remote.values.rows import may_have_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from twinkle_remote.protocol.spec import FunctionSpec


class _Entered(NamedTuple):
    """A call of the function.

    Attributes:
        args: Its arguments, in the columns that it reads.
        kwargs: The same of keyword arguments.
        rows: The rows to which it adds columns.
        reads: The columns that it reads; None for all.
        adds: The columns that it adds; None if it adds none.
        method: Class.method, for messages.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    rows: Any
    reads: tuple[Hashable, ...] | None
    adds: tuple[Hashable, ...] | None
    method: str


def with_column_rules(function: Callable[..., Any], spec: FunctionSpec, names: Sequence[str]) -> Callable[..., Any]:
    """A function that sees the columns which it reads, and whose result is its rows with the columns that it adds.

    Args:
        function: The function.
        spec: Its options, with `reads` or `adds`.
        names: Names of its positional parameters, without `self`.
    """
    rules = _Rules(function, spec, names)
    if spec.form == "coroutine":

        @functools.wraps(function)
        async def body(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            call = rules.enter(self, args, kwargs)
            return rules.leave(call, await function(self, *call.args, **call.kwargs))
    else:

        @functools.wraps(function)
        def body(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            call = rules.enter(self, args, kwargs)
            return rules.leave(call, function(self, *call.args, **call.kwargs))

    return body


class _Rules:
    def __init__(self, function: Callable[..., Any], spec: FunctionSpec, names: Sequence[str]) -> None:
        self._function, self._spec, self._names = function, spec, names

    def enter(self, itself: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entered:
        """Narrow the first divided argument to the columns that the function reads."""
        from twinkle_remote.values.picking import column_names  # most functions have no column rules
        from twinkle_remote.values.wanted_columns import no_columns, only_read

        spec, method = self._spec, f"{type(itself).__name__}.{self._function.__name__}"
        names = [*self._names[: len(args)], *(f"args[{i}]" for i in range(len(self._names), len(args)))]
        found = spec.divided(names, args, kwargs, may_have_rows)
        if found is None:
            if spec.adds is not None:
                raise DispatchError(f"{method}: adds= joins columns to an argument with rows, and the call has none")
            return _Entered(args, kwargs, None, None, None, method)
        if column_names(found.value) is None:
            rule = next((one for one in (spec.reads, spec.adds) if one is not None and one.is_for_columns), None)
            if rule is not None:
                raise no_columns(method, f"{rule.word}=", found.name, found.value)
            return _Entered(args, kwargs, found.value, None, None, method)
        given = {**dict(zip(names, args, strict=True)), **kwargs}
        adds = None if spec.adds is None else spec.adds.columns(method, found.name, given)
        reads = self._reads(itself, method, found.name, given)
        if reads is None:
            return _Entered(args, kwargs, found.value, None, adds, method)
        rows = only_read(found.value, Reads(reads, method))
        if isinstance(found.key, int):
            args = (*args[: found.key], rows, *args[found.key + 1 :])
        else:
            kwargs = {**kwargs, found.key: rows}
        return _Entered(args, kwargs, found.value, reads, adds, method)

    def _reads(
        self, itself: object, method: str, divided: str, given: Mapping[str, Any]
    ) -> tuple[Hashable, ...] | None:
        rule = self._spec.reads
        if rule is None:
            return None
        if rule.of_constructor:
            return reads_of(itself, self._function.__name__)
        return rule.columns(method, divided, given)

    def leave(self, call: _Entered, result: Any) -> Any:
        """The result: the rows with the columns that were added, or what the function returned.

        Raises:
            UnreadColumnError: It holds a column that the function does not read.
        """
        if call.adds is not None:
            from twinkle_remote.values.wanted_columns import with_added  # as in `enter`

            return with_added(call.rows, result, call.adds, call.method)
        if call.reads is not None:
            from twinkle_remote.values.wanted_columns import marks_in  # as in `enter`

            for mark in marks_in(result):
                raise UnreadColumnError(
                    f"{call.method} returned {mark!r}: name it in reads=, or leave it out of the result"
                )
        return result

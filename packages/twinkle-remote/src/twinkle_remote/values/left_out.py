"""The mark of a column that a function with `reads=` does not read: it stands in the column's place, and refuses use.

The value keeps its type, its columns keep their names and their order, and nothing can be read by mistake: asking
whether the column is there gives the truth, and every other use of it is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from twinkle_remote.errors import UnreadColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_REFUSED = (
    *("bool", "len", "iter", "next", "reversed", "contains", "call", "hash", "str", "format", "bytes", "index", "int"),
    *("float", "complex", "round", "array", "dataframe", "arrow_c_stream", "dlpack", "enter", "await", "aiter"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "setitem", "delitem"),
    *(
        f"{side}{name}"
        for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor")
        for side in ("", "r", "i")
    ),
)


class LeftOut:
    """A column that a function does not read; a slice of it is itself, so that rows are cut as before.

    Args:
        name: The column's.
        of: Class.method of the function.
    """

    __slots__ = ("_name", "_of")

    def __init__(self, name: Hashable, of: str) -> None:
        self._name, self._of = name, of

    def __getitem__(self, key: object) -> LeftOut:
        if isinstance(key, slice):
            return self
        raise unread(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of the protocols of copy, pickle and libraries
            raise AttributeError(name)
        raise unread(self)

    def __repr__(self) -> str:
        return f"<column {self._name!r}, which reads= of {self._of} leaves out>"

    def __copy__(self) -> LeftOut:
        return self

    def __deepcopy__(self, memo: object) -> LeftOut:
        return self

    def __reduce__(self) -> tuple[Callable[..., LeftOut], tuple[Hashable, str]]:
        return left_out, (self._name, self._of)

    @classmethod
    def __torch_function__(cls, function: object, types: object, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        flat = [part for one in given for part in (one if isinstance(one, list | tuple) else (one,))]
        raise unread(next(part for part in flat if isinstance(part, LeftOut)))


def _refuses(self: LeftOut, *given: object, **named: object) -> NoReturn:
    raise unread(self)


for _name in _REFUSED:
    setattr(LeftOut, f"__{_name}__", _refuses)

_made: dict[tuple[Hashable, str], LeftOut] = {}


def left_out(name: Hashable, of: str) -> LeftOut:
    """The mark of a column, in this process one for each column and function."""
    found = _made.get((name, of))
    return _made.setdefault((name, of), LeftOut(name, of)) if found is None else found


def unread(mark: LeftOut) -> UnreadColumnError:
    """The error that a column is used which the function does not read."""
    return UnreadColumnError(
        f"reads= of {mark._of} leaves out the column {mark._name!r}, and it is used: name it in reads="
    )


def column_of(mark: LeftOut) -> Hashable:
    """The name of the column in whose place a mark stands."""
    return mark._name

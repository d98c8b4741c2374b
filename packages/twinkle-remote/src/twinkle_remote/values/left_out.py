"""The mark of a column that a function with `reads=` does not read: it stands in the column's place, and refuses use.

The value keeps its type, its columns keep their names and their order, and nothing can be read by mistake: asking
whether the column is there gives the truth, and every other use of it is an error. Only Python's own containers can
hold such a mark: frames, tables and datasets of a library would leave the column out in silence, so they are not
narrowed at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar, runtime_checkable

from twinkle_remote.errors import UnreadColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

T = TypeVar("T")

_REFUSED = (
    *("bool", "len", "iter", "next", "reversed", "contains", "call", "hash", "str", "format", "bytes", "index", "int"),
    *("float", "complex", "round", "array", "dataframe", "arrow_c_stream", "dlpack", "dlpack_device", "enter", "await"),
    *("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "setitem", "delitem", "aiter"),
    *(
        f"{side}{name}"
        for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor")
        for side in ("", "r", "i")
    ),
)


class LeftOut:
    """A column that a function does not read; a slice of it is another one, so that rows are cut as before.

    Two marks never stand for the same rows, or Python would find rows equal by their identity whose columns differ.

    Args:
        name: The column's.
        of: Class.method of the function.
    """

    __slots__ = ("_name", "_of")

    def __init__(self, name: Hashable, of: str) -> None:
        self._name, self._of = name, of

    def __getitem__(self, key: object) -> LeftOut:
        if isinstance(key, slice):
            return LeftOut(self._name, self._of)
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
        return LeftOut, (self._name, self._of)

    @classmethod
    def __torch_function__(cls, function: object, types: object, args: Any = (), kwargs: Any = None) -> NoReturn:
        given = [*args, *(kwargs or {}).values()]
        flat = [part for one in given for part in (one if isinstance(one, list | tuple) else (one,))]
        raise unread(next(part for part in flat if isinstance(part, LeftOut)))


def _refuses(self: LeftOut, *given: object, **named: object) -> NoReturn:
    raise unread(self)


for _name in _REFUSED:
    setattr(LeftOut, f"__{_name}__", _refuses)


@runtime_checkable
class LeavingSplitter(Protocol[T]):
    """A splitter whose values can have the mark of a column in its place; those of others keep all columns."""

    def leave_out(self, value: T, marks: Mapping[Hashable, LeftOut]) -> T:
        """The same rows with these marks in place of columns; also of columns that the value has not."""

    def marks(self, value: T) -> Sequence[LeftOut]:
        """The marks that stand in place of columns."""


def as_plain(mark: LeftOut) -> list[Any]:
    """A mark for a wire without pickle."""
    return [mark._name, mark._of]


def from_plain(plain: Any) -> LeftOut:
    """The mark of `as_plain`.

    Raises:
        TypeError: It names no column.
        ValueError: It is something else.
    """
    if not isinstance(plain, list) or len(plain) != 2 or not isinstance(plain[1], str):
        raise ValueError("the mark of a column is the column's name, and Class.method of a function")
    hash(plain[0])
    return LeftOut(plain[0], plain[1])


def unread(mark: LeftOut) -> UnreadColumnError:
    """The error that a column is used which the function does not read."""
    return UnreadColumnError(
        f"reads= of {mark._of} leaves out the column {mark._name!r}, and it is used: name it in reads="
    )


def column_of(mark: LeftOut) -> Hashable:
    """The name of the column in whose place a mark stands."""
    return mark._name

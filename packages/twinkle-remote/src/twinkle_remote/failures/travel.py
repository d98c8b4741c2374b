"""Pickles exceptions with type and attributes, whatever their constructor takes; leaves out what does not pickle.

`pickle` itself calls an exception's constructor with its `args`, and fails if one attribute does not pickle.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Protocol

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.reraise import args_of, both_type, members_of, raised_type, remade


class ErrorPickler(Protocol):
    """A pickler whose `reducer_override` asks `reduce_error` first.

    Attributes:
        trusting: Whether to use an exception's own pickling methods.
        inside: Ids of the exceptions that are being pickled further out.
    """

    trusting: bool
    inside: frozenset[int]

    def __init__(self, file: io.BytesIO, trusting: bool, inside: frozenset[int]) -> None: ...

    def dump(self, value: Any, /) -> None:
        """Pickle a value into the file."""


class ByReference(pickle.Pickler):
    """Pickles classes by their names."""

    def __init__(self, file: io.BytesIO, trusting: bool, inside: frozenset[int]) -> None:
        super().__init__(file, protocol=5)
        self.trusting, self.inside = trusting, inside

    def reducer_override(self, value: Any) -> Any:
        """How an exception is pickled; the usual way for anything else."""
        reduced = reduce_error(value, self)
        return NotImplemented if reduced is None else reduced


def error_to_bytes(error: BaseException, pickler: type[ErrorPickler] = ByReference) -> bytes:
    """A pickled exception for `pickle.loads`; empty if its type does not pickle."""
    for trusting in (True, False):
        try:
            data = _dumps(error, pickler, trusting, frozenset())
            if isinstance(pickle.loads(data), type(error)):
                return data
        except Exception:  # the user's class, or an attribute of it, may raise anything
            continue
    return b""


def reduce_error(value: Any, pickler: ErrorPickler) -> tuple[Any, ...] | None:
    """How an exception of a user's class is pickled; None for every other value."""
    if not isinstance(value, BaseException) or (type(value).__module__ == "builtins" and value.__cause__ is None):
        return None
    kind = type(value)
    if pickler.trusting and not isinstance(value, RemoteCallError) and _says_itself(kind):
        return None
    if id(value) in pickler.inside:
        raise pickle.PicklingError("an exception that contains itself")
    given = args_of(value)
    state = (dict(enumerate(given)), dict(value.__dict__), members_of(value))
    args, attributes, members = (
        {key: data for key, part in parts.items() if (data := _part(part, value, pickler))} for parts in state
    )
    shown = [args.get(i) or pickle.dumps(_text(arg)) for i, arg in enumerate(given)]
    return _made_again, (raised_type(kind), isinstance(value, RemoteCallError), shown, attributes, members)


def _says_itself(kind: type) -> bool:
    names = {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"}
    return any(base.__module__ != "builtins" and names & vars(base).keys() for base in kind.__mro__)


def _part(part: Any, owner: BaseException, pickler: ErrorPickler) -> bytes:
    """A pickled argument or attribute; empty if it does not pickle, such as a lock."""
    try:
        data = _dumps(part, type(pickler), pickler.trusting, pickler.inside | {id(owner)})
        pickle.loads(data)
    except Exception:  # whatever the part's class raises
        return b""
    return data


def _dumps(value: Any, pickler: type[ErrorPickler], trusting: bool, inside: frozenset[int]) -> bytes:
    with io.BytesIO() as file:
        pickler(file, trusting, inside).dump(value)
        return file.getvalue()


def _made_again(
    kind: Any, both: bool, args: list[bytes], attributes: dict[str, bytes], members: dict[str, bytes]
) -> Any:
    loaded = [{name: pickle.loads(data) for name, data in parts.items()} for parts in (attributes, members)]
    return remade(both_type(kind) if both else kind, tuple(map(pickle.loads, args)), *loaded)


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as broken:  # a user's __repr__ may itself fail
        return f"<repr() of a {type(value).__name__} raised {type(broken).__name__}>"

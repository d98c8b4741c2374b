"""Pickles exceptions with type and attributes, whatever their constructor takes; leaves out what does not pickle.

`pickle` itself calls an exception's constructor with its `args`, and fails if one attribute does not pickle.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Protocol

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.reraise import args_of, both_type, raised_type, remade, sent_members, set_state

_PROTOCOL = 5
_DEEPEST = 8  # exceptions that are causes, contexts or attributes of each other


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
        super().__init__(file, protocol=_PROTOCOL)
        self.trusting, self.inside = trusting, inside

    def reducer_override(self, value: Any) -> Any:
        """The reduction of an exception; the usual way for anything else."""
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
    """The reduction of an exception of a user's class; None for every other value."""
    if not isinstance(value, BaseException) or _is_bare(value):
        return None
    if id(value) in pickler.inside or len(pickler.inside) > _DEEPEST:
        raise pickle.PicklingError("an exception that contains itself, or a long chain of them")
    kind, given = type(value), args_of(value)
    state = (dict(value.__dict__), sent_members(value))
    attributes, members = (
        {key: data for key, part in parts.items() if (data := _part(part, value, pickler))} for parts in state
    )
    if pickler.trusting and not isinstance(value, RemoteCallError) and _says_itself(kind):
        own = _part(_own_way(value), value, pickler)
        if own:
            return _made_its_way, (own, attributes, members)
    shown = [_part(arg, value, pickler) or pickle.dumps(_text(arg)) for arg in given]
    return _made_again, (raised_type(kind), isinstance(value, RemoteCallError), shown, attributes, members)


def _is_bare(value: BaseException) -> bool:
    """Whether Python's own way to pickle it loses nothing."""
    chained = value.__cause__ is not None or value.__context__ is not None
    named = isinstance(value, AttributeError | NameError)  # Python leaves out the name, by its version
    return type(value).__module__ == "builtins" and not chained and not named and not value.__dict__


def _own_way(value: BaseException) -> tuple[Any, ...] | None:
    """The function, the arguments and the state by which an exception says that it is made again; None without."""
    reduced: Any = value.__reduce_ex__(_PROTOCOL)
    return None if isinstance(reduced, str) else (*reduced[:2], reduced[2] if len(reduced) > 2 else None)


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


def _made_its_way(own: bytes, attributes: dict[str, bytes], members: dict[str, bytes]) -> Any:
    make, args, state = pickle.loads(own)
    error = make(*args)
    if state is not None:
        error.__setstate__(state)
    loaded = [{name: pickle.loads(data) for name, data in parts.items()} for parts in (attributes, members)]
    set_state(error, *loaded)
    return error


def _text(value: object) -> str:
    try:
        return repr(value)
    except Exception as broken:  # a user's __repr__ may itself fail
        return f"<repr() of a {type(value).__name__} raised {type(broken).__name__}>"

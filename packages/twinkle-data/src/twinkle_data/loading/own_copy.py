"""Copies of datasets and functions for ranks that share a process, as if they had been sent to processes of their own.

Values that reading does not change are shared: lists, arrays, Arrow tables. Values that may hold a position, a file or
a setting are copied: objects, and functions with the objects that they use. A value that cannot be copied is refused.
"""

from __future__ import annotations

import dis
import io
import os
import pickle
import re
import sysconfig
from collections.abc import Mapping
from enum import Enum
from functools import partial
from itertools import islice
from logging import Logger
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from twinkle_data.sources.kinds import (
    by_position,
    is_array_of_pandas,
    is_hugging_face,
    is_kind,
    is_plain,
    is_plain_column,
    is_tensors,
)
from twinkle_remote import Lazy, current_place, is_handle
from twinkle_remote.backends.support import are_ranks_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

_INERT: Final = (bool, int, float, complex, str, bytes, type(None), Enum, range, slice, re.Pattern)
_SHARED: Final = (ModuleType, CodeType, type, BuiltinFunctionType, Logger, Lazy)
_LOCKS: Final = ("_thread", "threading", "multiprocessing.synchronize")
_CONTAINERS: Final = (list, tuple, set, frozenset, dict)
_LOOKED_AT: Final = 1000  # elements of a container
_OWN_PACKAGES: Final = (
    "twinkle",
    "twinkle_data",
    "twinkle_engines",
    "twinkle_http",
    "twinkle_mesh",
    "twinkle_ray",
    "twinkle_remote",
)
_INSTALLED: Final = tuple(
    sysconfig.get_paths()[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
_EMPTY: Final = slice(None)  # stands for the contents of an empty cell

_readers: dict[int, tuple[tuple[str | None, int], ref[object]]] = {}  # by the id of what they read


def own_copies(*values: Any) -> tuple[Any, ...]:
    """Copies of a dataset and of its readers; objects that they share stay shared.

    Raises:
        TypeError: One holds something that cannot be copied; the message names it.
    """
    for value in values:
        _check_class(value)
    moving = [value for value in values if not _is_unchanged_by_reading(value)]
    try:
        copies = iter(_copied(moving))
    except Exception as error:
        raise _refusal(moving, error) from error
    return tuple([value if _is_unchanged_by_reading(value) else next(copies) for value in values])


def claim(dataset: object) -> None:
    """Remember which rank reads an iterable, where ranks share this process.

    Raises:
        ValueError: Another rank reads the same object.
    """
    if not are_ranks_threads() or not hasattr(type(dataset), "__weakref__"):
        return
    place = current_place()
    if place.worker is None or place.world_size == 1:
        return
    reader = place.worker.group, place.rank
    before, _ = _readers.setdefault(id(dataset), (reader, ref(dataset, partial(_forget, id(dataset)))))
    if before != reader:
        raise ValueError(
            f"rank {reader[1]} of group {reader[0]!r} and rank {before[1]} of {before[0]!r} read one {_name(dataset)} "
            "object, which has one position: build one on each rank, by a callable as dataset"
        )


def _forget(key: int, _: object) -> None:
    _readers.pop(key, None)


def _is_unchanged_by_reading(value: Any) -> bool:
    if isinstance(value, Mapping):
        return type(value) is dict and all(is_plain_column(by_position(column)) for column in value.values())
    own = is_plain(by_position(value)) or is_array_of_pandas(value) or is_tensors(value)
    return value is None or own or (is_hugging_face(value) and value.format["type"] != "custom")


def _copied(values: list[Any]) -> list[Any]:
    shared: list[Any] = []
    stream = io.BytesIO()
    _Copier(stream, shared).dump(values)
    stream.seek(0)
    copies: list[Any] = _Opener(stream, shared).load()
    return copies


def _refusal(values: list[Any], error: Exception) -> TypeError:
    """The error for the first of the values that cannot be copied by itself."""
    culprit = values[0]
    for value in values:
        try:
            _copied([value])
        except Exception as own:  # whatever a type's own pickling raises
            culprit, error = value, own
            break
    return TypeError(
        f"{_name(culprit)} cannot be copied for each rank, and the ranks of this session share a process "
        f"({type(error).__name__}: {error}): pass a callable that builds the dataset on each rank, without objects of "
        "the program that cannot be pickled"
    )


def _check_class(value: Any) -> None:
    """Refuse an object whose class uses a tokenizer of its module: a copy of the object would use the same one."""
    functions = [part for kind in type(value).__mro__ for part in vars(kind).values() if type(part) is FunctionType]
    for function in functions if type(value) is not FunctionType else ():
        for name in _global_names(function.__code__):
            if _is_tokenizer(function.__globals__.get(name)):
                raise TypeError(
                    f"{_name(value)} uses the tokenizer {name!r} of its module, which all ranks of this session would "
                    "share, since they share a process: make the tokenizer an attribute of the object"
                )


def _is_tokenizer(value: Any) -> bool:
    return is_kind(value, "transformers", "PreTrainedTokenizerBase") or is_kind(value, "tokenizers", "Tokenizer")


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


class _KeptPart:
    """A value that stays the same object: the globals of a function, or a list of the program's."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Copier(pickle.Pickler):
    """Pickles values; what is shared is put into a list instead."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        """The place in the list of what is shared; None for what is pickled."""
        if type(value) in (str, int, float, tuple, dict, list):  # most values
            return None
        free = type(value) is FunctionType and not _holds(value, set())
        if not (free or type(value) is _KeptPart or _is_shared(value)):
            return None
        self._shared.append(value)
        return len(self._shared) - 1

    def reducer_override(self, value: Any) -> Any:
        """Take functions and their cells apart; other values are pickled in their own way."""
        if type(value) is CellType:
            contents = _contents(value)
            kept = tuple(_KeptPart(part) for part in contents) if _is_inert(contents, set()) else contents
            return _new_cell, (), kept, None, None, _fill_cell
        if type(value) is not FunctionType:
            return NotImplemented
        own = {name: value.__globals__[name] for name in _globals_held(value, set())}
        own = {name: held for name, held in own.items() if held is not value}
        state = (_KeptPart(value.__globals__), own, value.__defaults__, value.__kwdefaults__, dict(vars(value)))
        parts = (value.__code__, value.__name__, value.__qualname__, value.__closure__)
        return _new_function, parts, state, None, None, _fill_function


class _Opener(pickle.Unpickler):
    """Opens what `_Copier` wrote."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, number: int) -> Any:
        """The value at a place in the list of what is shared."""
        return self._shared[number]


def _new_cell() -> CellType:
    return CellType()


def _fill_cell(cell: CellType, contents: Any) -> None:
    (value,) = contents
    value = value.value if type(value) is _KeptPart else value
    if value is not _EMPTY:
        cell.cell_contents = value


def _contents(cell: CellType) -> tuple[Any]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return (_EMPTY,)


def _new_function(code: CodeType, name: str, qualname: str, closure: tuple[CellType, ...] | None) -> FunctionType:
    function = FunctionType(code, {}, name, None, closure)
    function.__qualname__ = qualname
    return function


def _fill_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    module, own, defaults, keywords, attributes = state
    named = {function.__name__: function} if function.__name__ in function.__code__.co_names else {}
    function.__globals__.update({**module.value, **named, **own})
    function.__defaults__, function.__kwdefaults__ = defaults, keywords
    function.__module__ = module.value.get("__name__", function.__module__)
    vars(function).update(attributes)


def _is_shared(value: Any) -> bool:
    return isinstance(value, _SHARED) or type(value).__module__ in _LOCKS or is_handle(value)


def _holds(function: FunctionType, seen: set[int]) -> bool:
    """Whether a function writes to variables outside of it, or uses objects that may hold a position."""
    if id(function) in seen or _is_of_library(function):
        return False
    seen.add(id(function))
    # Another function may write to its closure.
    if function.__closure__ or _writes_globals(function.__code__) or _globals_held(function, seen):
        return True
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
    return not all(_is_inert(part, seen) for part in parts)


def _is_of_library(function: FunctionType) -> bool:
    """Whether it is no code of the program: what a library keeps for all its callers is not copied."""
    package = str(function.__globals__.get("__name__", "")).partition(".")[0]
    return package in _OWN_PACKAGES or function.__code__.co_filename.startswith(_INSTALLED)


def _globals_held(function: FunctionType, seen: set[int]) -> list[str]:
    """Names of the globals that a function uses and that may hold a position."""
    found = function.__globals__
    return [name for name in _global_names(function.__code__) if not _is_inert(found.get(name), seen)]


def _global_names(code: CodeType) -> Iterator[str]:
    yield from dict.fromkeys(name for part in _codes(code) for name in part.co_names)


def _writes_globals(code: CodeType) -> bool:
    """Whether the code, or that of a function in it, assigns to a global."""
    return any(step.opname == "STORE_GLOBAL" for part in _codes(code) for step in dis.get_instructions(part))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _is_inert(value: Any, seen: set[int]) -> bool:
    """Whether reading it cannot change it; of the program's own lists and dicts that is taken for granted."""
    known = isinstance(value, _INERT) or _is_shared(value) or _is_unchanged_by_reading(value)
    if known and not isinstance(value, _CONTAINERS):
        return True
    if type(value) is FunctionType:
        return not _holds(value, seen)
    if isinstance(value, _CONTAINERS):
        if id(value) in seen:
            return True
        seen.add(id(value))
        parts = islice(value.values() if isinstance(value, dict) else value, _LOOKED_AT)
        return all(_is_inert(part, seen) for part in parts)
    module = type(value).__module__
    return module in ("builtins", "torch", "numpy") and type(value).__name__ in (
        *("dtype", "device", "ellipsis", "method-wrapper", "builtin_function_or_method"),
    )

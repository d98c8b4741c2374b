"""Fingerprints of contents: the same in every process, on every platform and host, and for every path of the contents.

A digest looks at values, not at names of types: at all of a small value, and at evenly spread parts of a large one, so
it takes milliseconds. It runs no code of the user, and it never fails: an unknown value counts by its type.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from types import BuiltinFunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.sources import fingerprint_types as types
from twinkle_data.sources.fingerprint_types import LIMIT, runs, spread
from twinkle_data.sources.parts import attributes_of, held_by_function, is_of_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROWS: Final = 64  # rows of a dataset that are looked at, where a row is more than a number or a text
PLAIN_ROWS: Final = 4096  # and where it is one of these
_ELEMENTS: Final = 1 << 14  # numbers or texts in all; each row has an equal share, and in it each list
_FEWEST: Final = 8  # of each list
_NODES: Final = 8000  # lists, arrays and other values in all
_DEPTH: Final = 24
_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str))
_MAPPED: Final = 4096


def digest(value: object) -> str:
    """A digest of a value, as sixteen hex digits.

    It is of numbers, texts, bytes, dates, arrays, tensors of every layout, columns and frames of Arrow, pandas and
    polars, images, and of lists, dicts, sets, dataclasses and other objects of these.
    """
    return _Feed().digest(value)


def fingerprint_of(dataset: object, factory: Callable[[], object] | None = None) -> str:
    """The fingerprint of a dataset or stream whose rows only its own code can read, by what it holds.

    Its attribute `fingerprint` counts alone, where it is a text. Else the datasets, lists, arrays, tables and files
    that it holds count by their contents, in a library's dataset numbers too. In the user's own class numbers and
    texts do not: they may be a rank, a device or a place.

    Args:
        dataset: The object.
        factory: The callable that built it; what it holds counts too.
    """
    own = getattr(dataset, "fingerprint", None)
    if not isinstance(own, str) and not types.is_hugging_face(dataset):
        own = getattr(dataset, "_fingerprint", None)
    if isinstance(own, str):
        return digest(own)
    cached = _known.get(id(dataset))
    if cached is not None and cached[0]() is dataset:
        return cached[1]
    found = _Feed().held(dataset, factory)
    # What an object collects while it is read (a cache, a log) does not make it another dataset.
    key, known = id(dataset), _known  # the name of a module is None when the interpreter ends
    with suppress(TypeError):  # it may take no weak reference
        known[key] = weakref.ref(dataset, lambda _: known.pop(key, None)), found
    return found


_known: dict[int, tuple[weakref.ref[Any], str]] = {}


class _Feed:
    """One digest in the making.

    `by_value` says whether a number or a text counts as it is, as in a row. Elsewhere a text that names a file counts
    by the file's contents, and any other path by its last part.
    """

    def __init__(self) -> None:
        self._state = blake2b(digest_size=8)
        self._nodes = _NODES
        self._share = _ELEMENTS
        self._rows = 4 * ROWS
        self._depth = 0
        self._open: set[int] = set()

    def digest(self, value: object) -> str:
        """The digest of a value."""
        self._feed(value, by_value=True)
        return self._state.hexdigest()

    def held(self, dataset: object, factory: Callable[[], object] | None) -> str:
        """The digest of what an object holds."""
        self._feed(dataset, by_value=False)
        if factory is not None and not isinstance(factory, type):
            self._feed(factory, by_value=False)
        return self._state.hexdigest()

    def _tag(self, tag: str, payload: bytes = b"") -> None:
        self._state.update(f"{tag}:{len(payload)}:".encode())
        self._state.update(payload)

    def _feed(self, value: object, *, by_value: bool) -> None:
        self._nodes -= 1
        container = not isinstance(value, (str, bytes, int, float, type(None)))
        if self._nodes < 0 or self._depth > _DEPTH or (container and id(value) in self._open):
            self._tag("left", types.size_and_type(value))
            return
        self._depth += 1
        self._open.add(id(value))
        try:
            self._kind(value, by_value=by_value)
        except Exception:  # whatever it is, the dataset can be read: its type and size count
            self._tag("object", types.size_and_type(value))
        finally:
            self._open.discard(id(value))
            self._depth -= 1

    def _kind(self, value: Any, *, by_value: bool) -> None:
        if not by_value and types.is_place(value):
            self._tag("place", types.contents_of_place(value))
        elif type(value) in _PLAIN or isinstance(value, (bool, int, float, complex, str)):
            self._tag("plain", types.text_of(value))
        elif isinstance(value, np.generic):
            self._scalar(value, by_value=by_value)
        elif isinstance(value, (dict, MappingProxyType)):
            self._mapping(dict(value) if isinstance(value, MappingProxyType) else value, by_value=by_value)
        elif isinstance(value, (list, tuple)):
            self._sequence(value, by_value=by_value)
        elif isinstance(value, (set, frozenset)):
            self._set(value)
        elif isinstance(value, deque):
            self._sequence(list(value), by_value=by_value)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif types.is_tensor(value):
            for part in types.parts_of_tensor(value):
                self._part(part)
        elif types.is_hugging_face(value):
            self._table(types.hugging_face_rows(value, self._take_rows(), self._share), len(value))
        else:
            self._other(value, by_value=by_value)

    def _take_rows(self) -> int:
        """Rows of a table that may be looked at: many tables of a stream share them."""
        rows = min(ROWS, max(self._rows // 4, 2))
        self._rows -= rows
        return rows

    def _other(self, value: Any, *, by_value: bool) -> None:
        known = types.plain_of(value)
        if known is not None:
            tag, part = known
            self._tag(tag)
            self._part(part)
            return
        columns = types.columns_of(value, ROWS, self._share)
        if columns is not None:
            self._table(columns, len(value))
            return
        held = held_by_function(value)
        if held is not None:
            self._tag("function", getattr(value, "__name__", "").encode())
            for part in held:
                self._own(part)
        elif isinstance(value, (type, BuiltinFunctionType)):
            self._tag("name", value.__qualname__.encode())
        else:
            self._object(value, by_value=by_value)

    def _part(self, part: Any) -> None:
        if isinstance(part, bytes):
            self._tag("bytes", part)
        else:
            self._feed(part, by_value=True)

    def _scalar(self, value: np.generic, *, by_value: bool) -> None:
        plain = value.item()
        if isinstance(plain, np.generic):
            self._tag("plain", repr(plain).encode())
        else:
            self._feed(plain, by_value=by_value)

    def _sequence(self, value: Any, *, by_value: bool) -> None:
        kind = list if isinstance(value, list) else tuple
        length = kind.__len__(value)
        named = type(value).__name__ if type(value) not in (list, tuple) else ""
        self._tag(f"sequence{named}", str(length).encode())
        most = PLAIN_ROWS if self._depth <= 1 else max(self._share, _FEWEST)
        rows = [kind.__getitem__(value, index) for index in runs(length, most)]
        kinds = set(map(type, rows))
        texts = sum(len(row) for row in rows if type(row) is str) if str in kinds else 0
        if kinds <= _PLAIN and (by_value or str not in kinds) and texts <= 4 * LIMIT:
            with suppress(ValueError):  # Python refuses the digits of a huge number
                self._tag("rows", repr(rows).encode())
                return
        few = [rows[index] for index in spread(len(rows), ROWS if self._depth <= 1 else min(ROWS, most))]
        for row in few:
            self._shared(row, len(few), by_value=by_value)

    def _shared(self, value: object, parts: int, *, by_value: bool) -> None:
        """Feed one of several parts, with its share of the elements."""
        share, self._share = self._share, max(self._share // parts, 1)
        self._feed(value, by_value=by_value)
        self._share = share

    def _mapping(self, value: dict[Any, Any], *, by_value: bool) -> None:
        length = dict.__len__(value)
        self._tag("mapping", str(length).encode())
        keys = list(dict.keys(value))
        if length <= _MAPPED and set(map(type, keys)) <= _PLAIN:
            keys.sort(key=lambda key: (type(key).__name__, repr(key)))
        few = spread(length, 4 * ROWS)
        for index in few:
            self._feed(keys[index], by_value=True)
            self._shared(dict.__getitem__(value, keys[index]), len(few), by_value=by_value)

    def _set(self, value: Iterable[Any]) -> None:
        parts = list(value)
        self._tag("set", str(len(parts)).encode())
        if len(parts) <= _MAPPED:
            self._tag("parts", "".join(sorted(digest(part) for part in parts)).encode())

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        if isinstance(value, np.ma.MaskedArray):
            self._array(np.ma.getmaskarray(value))
            value = np.ma.getdata(value)
        value = np.asarray(value)
        if value.dtype.hasobject or value.dtype.kind == "T":
            self._tag("objects", str(value.shape).encode())
            for index in types.blocks(value.size, ROWS).tolist():
                self._feed(value.flat[index], by_value=True)
            return
        names = value.dtype.descr if value.dtype.names else value.dtype.newbyteorder("<").str
        self._tag(f"{names}{value.shape}", types.bytes_of_array(value))

    def _table(self, columns: Mapping[str, list[Any]], length: int) -> None:
        self._tag("table", str(length).encode())
        for name in sorted(columns, key=str):
            self._tag("column", str(name).encode())
            for part in columns[name]:
                self._shared(part, len(columns) * len(columns[name]), by_value=True)

    def _object(self, value: Any, *, by_value: bool) -> None:
        """An object by its attributes; outside of rows, a user's object by its data alone."""
        kind = type(value)
        self._tag("object", kind.__qualname__.encode())
        if types.is_opaque(kind):
            return
        library = is_of_library(kind)
        for name, part in sorted(attributes_of(value).items()):
            if by_value:
                if not types.is_computed(kind, name):
                    self._tag("attribute", name.encode())
                    self._feed(part, by_value=True)
            elif library:
                if types.is_state_of_library(name, part, value):
                    continue
                self._tag("attribute", name.encode())
                self._feed(part, by_value=False)
            else:
                self._own(part, name)

    def _own(self, part: Any, name: str = "") -> None:
        """A part of a user's object or function: data and files count, a number or a text may be a rank or a device."""
        if part is None or isinstance(part, (bool, int, float, complex)):
            return
        if isinstance(part, str) and not types.is_file(part):
            return
        self._tag("attribute", name.encode())
        self._feed(part, by_value=False)

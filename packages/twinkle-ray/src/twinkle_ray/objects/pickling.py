"""A pickled value in the form that suits Ray: a small head, large buffers out of band, and the object refs in it.

Buffers out of band go into the object store without a copy on the reader's side. Refs have to be visible to Ray, or
it would free their objects too early, or never.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle

from twinkle_ray.objects import arrow, dataset_rows, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BESIDE = 32 * 1024  # bytes; a smaller buffer is cheaper inside the head
_loading = threading.local()


class Pickled:
    """A value that is pickled once and can be opened many times.

    Args:
        head: The pickle.
        buffers: Its out-of-band buffers.
        refs: The object refs in it, in order.
    """

    __slots__ = ("buffers", "head", "refs")

    def __init__(self, head: Any, buffers: Sequence[Any] = (), refs: Sequence[ray.ObjectRef[Any]] = ()) -> None:
        self.head = head
        self.buffers = tuple(buffers)
        self.refs = tuple(refs)

    @property
    def nbytes(self) -> int:
        """Bytes of the head and the buffers."""
        return memoryview(self.head).nbytes + sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        head = pickle.PickleBuffer(self.head) if len(self.head) >= _BESIDE else self.head
        return Pickled, (head, tuple(map(pickle.PickleBuffer, self.buffers)), self.refs)

    def open(self) -> Any:
        """The value; large arrays are views of the buffers."""
        if not self.refs:
            return pickle.loads(self.head, buffers=self.buffers)
        outer = getattr(_loading, "refs", None)
        _loading.refs = self.refs
        try:
            return pickle.loads(self.head, buffers=self.buffers)
        finally:
            _loading.refs = outer


def _ref(index: int) -> ray.ObjectRef[Any]:
    found: ray.ObjectRef[Any] = _loading.refs[index]
    return found


_CloudPickler: Any = cloudpickle.CloudPickler  # Ray's copy of cloudpickle is not typed


class _Pickler(_CloudPickler):  # type: ignore[misc]  # as above
    """Classes of `__main__` by value, arrays read-only, tensors as arrays, slices of tables alone, refs by index."""

    def __init__(self, file: io.BytesIO, refs: list[ray.ObjectRef[Any]], out_of_band: Callable[[Any], bool]) -> None:
        super().__init__(file, protocol=5, buffer_callback=out_of_band)
        self._refs = refs

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ray.ObjectRef):
            self._refs.append(value)
            return _ref, (len(self._refs) - 1,)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            reduced = tensors.reduce(value)
            if reduced is not None:
                return reduced
        reduced = (
            _array(value) or arrow.reduce(value) or dataset_rows.reduce(value) or _slots(value) or reduce_cache(value)
        )
        return super().reducer_override(value) if reduced is None else reduced


_USUAL = (object.__reduce_ex__, object.__reduce__, object.__getstate__)


def _slots(value: Any) -> tuple[Any, ...] | None:
    """Reduce an object of a class of `__main__` with slots; None for any other value.

    On a worker, cloudpickle has built its class, whose objects keep in `__dict__` what the original keeps in slots.
    """
    kind: Any = type(value)
    if kind.__module__ != "__main__" or "__slots__" not in vars(kind) or not hasattr(value, "__dict__"):
        return None
    if (kind.__reduce_ex__, kind.__reduce__, kind.__getstate__) != _USUAL:
        return None
    make, args, state, *rest = value.__reduce_ex__(5)
    slots = state[1] if isinstance(state, tuple) else {}
    plain = (state[0] if isinstance(state, tuple) else state) or {}
    return make, args, (None, {**plain, **slots}), *rest


_LRU: Any = type(functools.lru_cache(int))
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)


def reduce_cache(value: Any) -> tuple[Any, ...] | None:
    """Reduce what keeps computed values for classes and functions of `__main__`; None for any other value.

    A `cached_property` has a lock before Python 3.12, a function under `lru_cache` is pickled by a name that workers do
    not have, and weak collections, as under `singledispatch`, cannot be pickled at all.
    """
    if isinstance(value, functools.cached_property):
        state = {name: own for name, own in vars(value).items() if name != "lock"}
        return _cached_property, (type(value), "lock" in vars(value)), state
    if type(value) is _LRU:
        return None if _is_found(value) else (_lru, (value.__wrapped__, value.cache_parameters()), vars(value))
    if isinstance(value, _WEAK) and type(value) in _WEAK:
        return type(value), (list(value) if isinstance(value, weakref.WeakSet) else dict(value),)
    return None


def _cached_property(kind: Any, locks: bool) -> Any:
    made = kind.__new__(kind)
    if locks:
        made.lock = threading.RLock()
    return made


def _lru(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _is_found(function: Any) -> bool:
    """Whether a worker finds a function by its name: it is that of a module, and not of the program."""
    module = getattr(function, "__module__", None)
    found: Any = sys.modules.get(module or "")
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is function and module != "__main__"


def pack(value: object) -> Pickled:
    """Pickle a value.

    Raises:
        Exception: Whatever the value's own pickling raises; `TypeError` and `PicklingError` mostly.
    """
    buffers: list[pickle.PickleBuffer] = []
    refs: list[ray.ObjectRef[Any]] = []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _BESIDE:
            return True
        buffers.append(buffer)
        return False

    with io.BytesIO() as file:
        _Pickler(file, refs, out_of_band).dump(value)
        return Pickled(file.getvalue(), buffers, refs)


def _array(value: Any) -> tuple[Any, ...] | None:
    """Reduce an array or frame anywhere inside a value; None for any other value."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray:
        view = value.view() if value.flags.forc else value.copy()
        view.flags.writeable = False
        make, args, *state = view.__reduce_ex__(5)
        return (_read_only, (make, args, state[0])) if state else (make, args)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        make, args, *state = value.__reduce_ex__(5)
        return _own_frame, (make, args, state[0])
    return None


def _read_only(make: Any, args: Any, state: Any) -> Any:
    array = make(*args)
    array.__setstate__(state)
    array.flags.writeable = False
    return array


def _own_frame(make: Any, args: Any, state: Any) -> Any:
    frame = make(*args)
    frame.__setstate__(state)
    return frame.copy()

"""A pickled value in the form that suits Ray: a small head, large buffers out of band, and the object refs in it.

Buffers out of band go into the object store without a copy on the reader's side. Refs have to be visible to Ray, or
it would free their objects too early, or never.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle

from twinkle_ray.objects import tensors

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
    """Classes of `__main__` by value, arrays read-only, tensors as arrays, refs by index."""

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
        reduced = _array(value)
        return super().reducer_override(value) if reduced is None else reduced


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

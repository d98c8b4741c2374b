"""Operators of lazy results, which use the value: as numbers, as containers, and in array libraries."""

from __future__ import annotations

import importlib
import operator
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def _plain(value: Any) -> Any:
    return value.result() if isinstance(value, LazyOperators) else value


def _plain_within(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_plain_within, value))
    return {key: _plain_within(item) for key, item in value.items()} if type(value) is dict else _plain(value)


def _of(function: Any) -> Any:
    """The method that applies a function to the value."""

    def method(self: LazyOperators, *args: Any) -> Any:
        return function(self.result(), *map(_plain, args))

    return method


def _reflected(function: Any) -> Any:
    """The method of the right operand."""

    def method(self: LazyOperators, other: Any) -> Any:
        return function(_plain(other), self.result())

    return method


class LazyOperators:
    """Applies each operator to the value; a lazy operand is replaced by its value too."""

    __slots__ = ()

    @abstractmethod
    def result(self, timeout: float | None = None) -> Any:
        """The value."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.result())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        numpy = importlib.import_module("numpy")
        if copy is None:
            return numpy.asarray(self.result(), dtype=dtype)
        return numpy.array(self.result(), dtype=dtype, copy=copy)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply a torch function to the values of lazy results."""
        return function(*_plain_within(args), **_plain_within(kwargs or {}))

    __len__: Any = _of(len)
    __bool__: Any = _of(bool)
    __int__: Any = _of(int)
    __float__: Any = _of(float)
    __round__: Any = _of(round)
    __index__: Any = _of(operator.index)
    __neg__: Any = _of(operator.neg)
    __abs__: Any = _of(operator.abs)
    __contains__: Any = _of(operator.contains)
    __getitem__: Any = _of(operator.getitem)
    __eq__: Any = _of(operator.eq)
    __ne__: Any = _of(operator.ne)
    __lt__: Any = _of(operator.lt)
    __le__: Any = _of(operator.le)
    __gt__: Any = _of(operator.gt)
    __ge__: Any = _of(operator.ge)
    __add__: Any = _of(operator.add)
    __sub__: Any = _of(operator.sub)
    __mul__: Any = _of(operator.mul)
    __truediv__: Any = _of(operator.truediv)
    __floordiv__: Any = _of(operator.floordiv)
    __mod__: Any = _of(operator.mod)
    __pow__: Any = _of(operator.pow)
    __matmul__: Any = _of(operator.matmul)
    __radd__: Any = _reflected(operator.add)
    __rsub__: Any = _reflected(operator.sub)
    __rmul__: Any = _reflected(operator.mul)
    __rtruediv__: Any = _reflected(operator.truediv)
    __rfloordiv__: Any = _reflected(operator.floordiv)
    __rmod__: Any = _reflected(operator.mod)
    __rpow__: Any = _reflected(operator.pow)
    __rmatmul__: Any = _reflected(operator.matmul)

"""Rows of numpy arrays: views when cut, one copy when joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np  # noqa: TID253  loaded only once a caller's own value is an array

from twinkle_remote.values.attributes import attributes_of, carried, finalized_attributes, set_attributes
from twinkle_remote.values.snapshot import read_only

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import DTypeLike, NDArray

    from twinkle_remote.protocol.tables import Rows

_NUMBERS = "biufc"


class NumpySplitter:
    """Splitter for `numpy.ndarray`, whose rows are the first dim, and for numpy's scalars, which have none."""

    def length(self, value: NDArray[Any]) -> int | None:
        """Size of the first dim; None for 0-d."""
        return value.shape[0] if value.ndim else None

    def slice(self, value: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """A view of rows [start, stop), of the same type."""
        if type(value) is np.ndarray:
            return value[start:stop]
        part = value[start:stop]
        if type(part) is not type(value):
            raise TypeError(f"a part of {type(value).__name__} is {type(part).__name__}")
        if not _of_numpy(value):
            set_attributes(part, carried(value, dict(attributes_of(part))))
        return part

    def take(self, value: NDArray[Any], rows: Rows) -> NDArray[Any]:
        """A copy of rows of these numbers, of the same type."""
        part: NDArray[Any] = value[np.asarray(rows, dtype=np.intp)]
        if type(part) is not type(value):
            raise TypeError(f"a part of {type(value).__name__} is {type(part).__name__}")
        if not _of_numpy(value):
            set_attributes(part, carried(value, dict(attributes_of(part))))
        return part

    def concat(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One new array that is read-only, as those that were not joined; masks, types and attributes are kept.

        Raises:
            ValueError: The elements would become others, or the types and attributes differ.
        """
        check_types([value.dtype for value in values], values)
        kinds = list(dict.fromkeys(type(value) for value in values))
        if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
            return _masked(values)
        if len(kinds) > 1:
            raise ValueError(f"they are of the types {', '.join(kind.__name__ for kind in kinds)}")
        first = values[0]
        whole: NDArray[Any] = np.concatenate([value.view(np.ndarray) for value in values])
        if all(value.dtype == first.dtype != whole.dtype for value in values):  # the other order of bytes
            whole = whole.astype(first.dtype)
        if kinds[0] is not np.ndarray:
            whole = whole.view(kinds[0])
            whole.__array_finalize__(first)
            if not _of_numpy(first):
                set_attributes(whole, finalized_attributes(whole, values))
        return read_only(whole)  # type: ignore[no-any-return]  # an array

    def equal(self, left: NDArray[Any], right: NDArray[Any]) -> bool:
        """Same dtype, shape and elements; NaN equals NaN where the dtype has it."""
        if left.dtype != right.dtype:
            return False
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))

    def reduce(self, how: str, values: Sequence[NDArray[Any]], weights: Sequence[float] | None) -> NDArray[Any]:
        """The sum or mean, elementwise, in a type that is wide enough: numpy's own rule for `sum` and `mean`.

        Args:
            how: "sum" or "mean".
            values: At least one, of one shape.
            weights: One for each, not all 0; None weighs all the same.
        """
        dtype = np.result_type(*values)
        wide = dtype
        if dtype.kind in "biu":
            integral = how == "sum" and weights is None
            wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64) if integral else np.dtype(np.float64)
        elif dtype == np.float16:
            wide = np.dtype(np.float32)
        total: Any = 0
        for i, value in enumerate(values):
            total = total + value.astype(wide) * (1 if weights is None else weights[i])
        if how == "mean":
            total = total / (len(values) if weights is None else sum(weights))
        total = total.astype(dtype if dtype == np.float16 else wide)
        return read_only(total) if isinstance(total, np.ndarray) else total  # type: ignore[no-any-return]  # or scalar


def check_types(types: Sequence[DTypeLike], values: Sequence[Any]) -> None:
    """Check that the elements of arrays stay what they are in the common type of all.

    Args:
        types: The type of each array; numbers meet numbers, and everything else its own kind.
        values: The arrays, whose elements are looked at where the types alone do not say it.

    Raises:
        ValueError: An element would become another.
    """
    dtypes = [np.dtype(each) for each in types]
    first = dtypes[0]
    if all(each == first and each.metadata == first.metadata for each in dtypes):
        return
    said = f"their types are {', '.join(dict.fromkeys(map(str, dtypes)))}"
    kinds = {"n" if each.kind in _NUMBERS else each.kind for each in dtypes}
    if len(kinds) > 1 and "O" in kinds and kinds <= {"O", "n"}:
        return
    if len(kinds) > 1 or kinds & set("VT"):
        raise ValueError(f"{said}, which have no common type; return one type on all ranks")
    common = np.result_type(*dtypes)
    for dtype, value in zip(dtypes, values, strict=True):
        if dtype != common and not _survives(np.asarray(value), common):
            raise ValueError(f"{said}, and as {common} some elements would be others; return one type on all ranks")


def _survives(value: NDArray[Any], common: np.dtype[Any]) -> bool:
    """Whether all elements are the same in a type that is not narrower by numpy's rules."""
    if value.dtype.kind in "iu" and common.kind in "fc":
        limit = 2 ** (np.finfo(common).nmant + 1)
        return not value.size or (-limit <= int(value.min()) and int(value.max()) <= limit)
    if value.dtype.kind in "mM":
        back = value.astype(common).astype(value.dtype)
        return bool(((back == value) | (np.isnat(back) & np.isnat(value))).all())
    return np.can_cast(value.dtype, common, "safe")


def _of_numpy(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "numpy"


def _masked(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    joined: Any = np.ma.concatenate(values)  # type: ignore[no-untyped-call]  # numpy's own gap
    fills = [value.fill_value for value in values if isinstance(value, np.ma.MaskedArray)]
    if all(fill == fills[0] for fill in fills):
        joined.fill_value = fills[0]
    return joined  # type: ignore[no-any-return]  # an array


SPLITTER = NumpySplitter()

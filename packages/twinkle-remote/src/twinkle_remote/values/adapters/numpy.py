"""Rows of numpy arrays: views when cut, one copy when joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np  # noqa: TID253  loaded only once a caller's own value is an array

from twinkle_remote.values.snapshot import read_only

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray


class NumpySplitter:
    """Splitter for `numpy.ndarray`, whose rows are the first dim, and for numpy's scalars, which have none."""

    def length(self, value: NDArray[Any]) -> int | None:
        """Size of the first dim; None for 0-d."""
        return value.shape[0] if value.ndim else None

    def slice(self, value: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """A view of rows [start, stop)."""
        return value[start:stop]

    def concat(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One new array that is read-only, as those that were not joined; masks are kept."""
        if any(isinstance(value, np.ma.MaskedArray) for value in values):
            joined: NDArray[Any] = np.ma.concatenate(values)  # type: ignore[no-untyped-call]  # numpy's own gap
            return joined
        whole: NDArray[Any] = read_only(np.concatenate(values))
        return whole

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


SPLITTER = NumpySplitter()

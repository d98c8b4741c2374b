"""Rows of numpy arrays: views when cut, one copy when joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np  # noqa: TID251  loaded only once a caller's own value is an array

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray  # noqa: TID251  as above


class NumpySplitter:
    """Splitter for `numpy.ndarray`; the rows are the first dim."""

    def length(self, value: NDArray[Any]) -> int | None:
        """Size of the first dim; None for 0-d."""
        return value.shape[0] if value.ndim else None

    def slice(self, value: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """A view of rows [start, stop)."""
        return value[start:stop]

    def concat(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One new array."""
        return np.concatenate(values)

    def equal(self, left: NDArray[Any], right: NDArray[Any]) -> bool:
        """Same dtype, shape and elements; NaN equals NaN where the dtype has it."""
        if left.dtype != right.dtype:
            return False
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))


SPLITTER = NumpySplitter()

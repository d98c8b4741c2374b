"""Orders of rows that a dataset makes while it is read, in place of its constructor.

Each process that reads, and each run that goes on from a state, makes its own. Where it draws it from a generator, the
orders differ, and rows come twice or never. So a process looks at the dataset before and after its first step.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.fingerprint_types import is_tensor
from twinkle_data.sources.parts import attributes_of, objects_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST: Final = 2_000_000  # rows: more would take seconds
_OBJECTS: Final = 500


class MadeOrders:
    """Watches the first step of a process.

    Args:
        datasets: The objects whose code reads samples.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self._datasets = list(datasets)
        self._before = {key: (digest(rows), _sorted(rows)) for key, rows in self._orders()}

    def made(self) -> str:
        """A digest of the orders that were made or changed since; empty where there are none."""
        found = []
        for key, rows in self._orders():
            now, (before, ranked) = digest(rows), self._before.get(key, ("", None))
            if now == before:
                continue
            own = _sorted(rows)
            # Other values in the same list are a cache, or a log of what was read.
            if own is not None and (np.array_equal(own, ranked) if before else len(np.unique(own)) == len(own)):
                found.append(now)
        return digest(sorted(found)) if found else ""

    def _orders(self) -> Iterator[tuple[tuple[int, str], Any]]:
        """Lists and arrays with a number for each row, by the object and the attribute that hold them."""
        for dataset in self._datasets:
            for one in islice(objects_in(dataset), _OBJECTS):
                for name, value in attributes_of(one).items():
                    if _is_order(value) and len(value) in (_length(one), _length(dataset)):
                        yield (id(one), name), value


def _is_order(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu" and 1 < len(value) <= _MOST
    if is_tensor(value):
        return bool(value.ndim == 1 and not value.is_floating_point() and 1 < len(value) <= _MOST)
    return type(value) in (list, tuple) and 1 < len(value) <= _MOST and isinstance(value[0], (int, np.integer))


def _sorted(rows: Any) -> Any:
    """The numbers in ascending order; None where they are no numbers."""
    try:
        found = np.sort(np.asarray(rows))
    except (TypeError, ValueError):
        return None
    return found if found.dtype.kind in "iu" else None


def _length(value: Any) -> int:
    try:
        return len(value) if hasattr(type(value), "__getitem__") else -1
    except Exception:  # whatever a user's length raises
        return -1

"""Numpy arrays of any size are read-only for their reader; pandas frames are the reader's own copies.

Large arrays are views of the object store, which is read-only. Small ones would be writable without this module, and
code that writes in place would fail with larger batches only.
"""

from __future__ import annotations

import sys
from typing import Any


def reduce(value: Any) -> tuple[Any, ...] | None:
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

"""Values whose rows bear numbers: frames with a default index, which goes on from one rank's result to the next."""

from __future__ import annotations

import sys

from twinkle_remote.values.columns import columns


def is_numbered(value: object) -> bool:
    """Whether a value, or a part of it, is a frame or series with a default index from 0."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return False
    if isinstance(value, pandas.DataFrame | pandas.Series):
        index = value.index
        return isinstance(index, pandas.RangeIndex) and index.start == 0 and index.step == 1
    parts = columns(value)
    return parts is not None and any(map(is_numbered, parts.values()))

"""Values with rows: how they are cut, joined and reduced."""

from twinkle_remote.values.columns import columns, rebuild, with_parts
from twinkle_remote.values.registered_splitters import register_splitter, registered_splitters
from twinkle_remote.values.rows import PLAIN, ReducibleSplitter, Splitter, rows_of, size_in_bytes, splitter_of, take
from twinkle_remote.values.tree import map_columns

__all__ = [
    "PLAIN",
    "ReducibleSplitter",
    "Splitter",
    "columns",
    "map_columns",
    "rebuild",
    "register_splitter",
    "registered_splitters",
    "rows_of",
    "size_in_bytes",
    "splitter_of",
    "take",
    "with_parts",
]

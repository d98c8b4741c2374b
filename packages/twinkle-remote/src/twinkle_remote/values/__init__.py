"""Values with rows: how they are cut, joined and reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_remote.values.columns import columns, rebuild, with_parts
from twinkle_remote.values.registered_splitters import register_splitter, registered_splitters
from twinkle_remote.values.rows import PLAIN, ReducibleSplitter, Splitter, rows_of, size_in_bytes, splitter_of, take
from twinkle_remote.values.tree import map_columns
from twinkle_remote.values.type_names import (
    TYPES,
    TypeNames,
    component_name,
    is_named_tuple,
    name_of,
    register_type,
    registered_component,
    travels_by_name,
)

if TYPE_CHECKING:
    from twinkle_remote.values.picking import pick, selected_where_there

__all__ = [
    "PLAIN",
    "TYPES",
    "ReducibleSplitter",
    "Splitter",
    "TypeNames",
    "columns",
    "component_name",
    "is_named_tuple",
    "map_columns",
    "name_of",
    "pick",
    "rebuild",
    "register_splitter",
    "register_type",
    "registered_component",
    "registered_splitters",
    "rows_of",
    "selected_where_there",
    "size_in_bytes",
    "splitter_of",
    "take",
    "travels_by_name",
    "with_parts",
]


def __getattr__(name: str) -> object:
    """The operations on tables are loaded on first use: a small worker needs none."""
    if name not in ("pick", "selected_where_there"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from twinkle_remote.values import picking

    value: object = getattr(picking, name)
    globals()[name] = value
    return value

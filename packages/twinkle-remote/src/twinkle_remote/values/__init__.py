"""Values with rows: how they are cut, joined and reduced.

`rows` says which values have rows and cuts them, by the splitter of their type (`sequences`, `adapters`, or one that a
program registers) or by their `columns`; `join` and `reduce` make one value of several. A copy with other parts keeps
the `attributes` of its object. `unknown` refuses values of types that look as if they had rows. `picking`,
`wanted_columns` and `left_out` are for tables: rows by number, columns by name, whose bytes `column_bytes` counts.
"""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_remote.values.column_bytes import ColumnBytes as ColumnBytes
    from twinkle_remote.values.column_bytes import opened_bytes as opened_bytes
    from twinkle_remote.values.columns import columns as columns
    from twinkle_remote.values.columns import rebuild as rebuild
    from twinkle_remote.values.columns import with_parts as with_parts
    from twinkle_remote.values.left_out import LeftOut as LeftOut
    from twinkle_remote.values.left_out import column_of as column_of
    from twinkle_remote.values.picking import pick as pick
    from twinkle_remote.values.registered_splitters import register_splitter as register_splitter
    from twinkle_remote.values.registered_splitters import registered_splitters as registered_splitters
    from twinkle_remote.values.rows import PLAIN as PLAIN
    from twinkle_remote.values.rows import ReducibleSplitter as ReducibleSplitter
    from twinkle_remote.values.rows import Splitter as Splitter
    from twinkle_remote.values.rows import rows_of as rows_of
    from twinkle_remote.values.rows import size_in_bytes as size_in_bytes
    from twinkle_remote.values.rows import splitter_of as splitter_of
    from twinkle_remote.values.rows import take as take
    from twinkle_remote.values.tree import map_columns as map_columns
    from twinkle_remote.values.type_names import TYPES as TYPES
    from twinkle_remote.values.type_names import TypeNames as TypeNames
    from twinkle_remote.values.type_names import component_name as component_name
    from twinkle_remote.values.type_names import is_named_tuple as is_named_tuple
    from twinkle_remote.values.type_names import name_of as name_of
    from twinkle_remote.values.type_names import register_type as register_type
    from twinkle_remote.values.type_names import registered_component as registered_component
    from twinkle_remote.values.type_names import travels_by_name as travels_by_name
    from twinkle_remote.values.wanted_columns import selected_where_there as selected_where_there
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

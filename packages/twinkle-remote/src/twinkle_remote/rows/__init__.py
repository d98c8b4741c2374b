"""Rows of values: how they are counted, cut, joined and reduced.

`row_types` has the three functions of a type and the registry, `libraries` those of known libraries, `records` the
values whose rows are those of their parts. `cut` and `concat` are inverse; `columns` are rows and columns for tables;
`reduce` makes sums and means. `unknown` refuses what looks as if it had rows, `plain` walks nested values, and
`wire_types` names classes for HTTP.
"""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_remote.rows.columns import picked as picked
    from twinkle_remote.rows.columns import selected_where_there as selected_where_there
    from twinkle_remote.rows.cut import PLAIN as PLAIN
    from twinkle_remote.rows.cut import rows_of as rows_of
    from twinkle_remote.rows.cut import size_in_bytes as size_in_bytes
    from twinkle_remote.rows.cut import take as take
    from twinkle_remote.rows.plain import map_record as map_record
    from twinkle_remote.rows.records import parts_of as parts_of
    from twinkle_remote.rows.records import rebuild as rebuild
    from twinkle_remote.rows.records import with_parts as with_parts
    from twinkle_remote.rows.row_types import RowType as RowType
    from twinkle_remote.rows.row_types import come_with_their_class as come_with_their_class
    from twinkle_remote.rows.row_types import register_rows as register_rows
    from twinkle_remote.rows.row_types import row_type_of as row_type_of
    from twinkle_remote.rows.wire_types import TYPES as TYPES
    from twinkle_remote.rows.wire_types import TypeNames as TypeNames
    from twinkle_remote.rows.wire_types import component_name as component_name
    from twinkle_remote.rows.wire_types import is_named_tuple as is_named_tuple
    from twinkle_remote.rows.wire_types import name_of as name_of
    from twinkle_remote.rows.wire_types import register_type as register_type
    from twinkle_remote.rows.wire_types import registered_component as registered_component
    from twinkle_remote.rows.wire_types import travels_by_name as travels_by_name
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

"""Values with rows: how they are cut, joined and reduced."""

from twinkle_remote.values.rows import PLAIN, Splitter, columns, rebuild, register_splitter, rows_of, take

__all__ = ["PLAIN", "Splitter", "columns", "rebuild", "register_splitter", "rows_of", "take"]

"""A lazy result in a notebook."""

from __future__ import annotations

import reprlib
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_remote.call.lazy_source import LazySource


def lazy_html(source: LazySource, fetched: tuple[object] | None) -> str:
    """A lazy result as HTML; never waits and never fetches.

    Args:
        source: What it stands for.
        fetched: The value in a tuple, if it is in this process.
    """
    state, value = source.state(), "on the workers; <code>get(x)</code> brings it here"
    if fetched is not None:
        state, value = "fetched", f"<code>{escape(reprlib.repr(fetched[0]))}</code>"
    rows = (("call", f"<code>{escape(source.describe())}</code>"), ("state", escape(state)), ("value", value))
    cells = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{cell}</td></tr>" for name, cell in rows)
    return f"<b>Lazy result</b><table>{cells}</table>"

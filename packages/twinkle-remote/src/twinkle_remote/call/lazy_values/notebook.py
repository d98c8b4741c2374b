"""A handle and a lazy result in a notebook."""

from __future__ import annotations

import reprlib
from html import escape
from typing import TYPE_CHECKING

from twinkle_remote.protocol.marks import options_under

if TYPE_CHECKING:
    from twinkle_remote.call.lazy_values.lazy_source import LazySource
    from twinkle_remote.protocol.component import Component

_RANKS_DRAWN = 64


def handle_html(cls: type, component: Component) -> str:
    """A handle as HTML: where the component lives, its remote functions, and its mesh; nothing is sent.

    Args:
        cls: The remote class.
        component: The component.
    """
    place = f"{component.name} on {component.group}, {len(component.ranks)} workers"
    titles = "".join(
        f"<th style='text-align:left'>{title}</th>" for title in ("remote function", "dispatch", "collect")
    )
    rows = [f"<tr>{titles}</tr>"]
    for name in dir(cls):
        spec = options_under(cls, name)
        if spec is not None:
            cells = (name, _shown(spec.dispatch), _shown(spec.collect))
            rows.append("<tr>" + "".join(f"<td><code>{escape(cell)}</code></td>" for cell in cells) + "</tr>")
    mesh = component.mesh
    picture = "" if mesh is None or mesh.world_size > _RANKS_DRAWN else mesh.svg()
    return f"<b>{escape(place)}</b><table>{''.join(rows)}</table>{picture}"


def _shown(option: object) -> str:
    return option if isinstance(option, str) else getattr(option, "__name__", "a function")


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

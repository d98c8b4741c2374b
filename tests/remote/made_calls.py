"""Calls as values, of no session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.protocol import Call, Component

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.spec import FunctionSpec


def made_call(
    name: str, spec: FunctionSpec, ranks: Iterable[int], mesh: DeviceMesh | None = None, **given: Any
) -> Call:
    """Return a call of a method on some ranks, with positional arguments by name."""
    kind, _, method = name.rpartition(".")
    component = Component("two", "made", kind, tuple(ranks), mesh)
    return Call("method", component, method, name, spec, "here", list(given), tuple(given.values()))

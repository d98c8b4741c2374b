"""The call that asks a worker whether it is alive."""

from __future__ import annotations


def ping(component: object) -> None:
    """Return from a worker: it is alive, and has the component."""

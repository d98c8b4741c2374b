"""Asks a worker whether it is there."""

from __future__ import annotations


def present(component: object) -> None:
    """Runs on a worker: it is there, and has the component."""

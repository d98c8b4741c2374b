"""The error of a forked process that wants to use the session of its parent."""

from __future__ import annotations

import os


def forked_from(parent: int) -> str:
    """The error text for a forked process; says what to use.

    Args:
        parent: Process id of the owner of the session.
    """
    return (
        f"process {os.getpid()} was forked from process {parent}, whose session works in that process alone: make the "
        'calls there and hand over their values, or start this process by multiprocessing.get_context("spawn")'
    )

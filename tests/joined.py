"""The environment of programs whose sessions join a cluster, where they would start their own."""

from __future__ import annotations

import os


def joined_environment(address: str) -> dict[str, str]:
    """This process's variables, and the address of the cluster."""
    return {**os.environ, "RAY_ADDRESS": address}

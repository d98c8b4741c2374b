"""The environment of programs whose sessions join a cluster, where they would start their own."""

from __future__ import annotations

import os


def joined_environment(address: str) -> dict[str, str]:
    """This process's variables without those of which a session would tell that workers do not get them.

    Args:
        address: Of the cluster.
    """
    from twinkle_ray.cluster.environment import left_behind

    unsaid = left_behind(os.environ)
    return {**{name: value for name, value in os.environ.items() if name not in unsaid}, "RAY_ADDRESS": address}

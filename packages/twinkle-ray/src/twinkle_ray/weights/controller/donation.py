"""Weights of a replica that lives, for one whose workers were started again."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from twinkle_ray.weights.controller.controller import Controller
from twinkle_ray.weights.planning.manifest import MatchOptions

if TYPE_CHECKING:
    from twinkle_ray.weights.controller.controller import SyncOptions
    from twinkle_ray.weights.controller.participants import Participants


def donate(source: Participants, target: Participants, version: int, options: SyncOptions) -> None:
    """Write the weights of some ranks into others, between two calls of the donors.

    Args:
        source: The ranks of one replica.
        target: Ranks that run nothing else.
        version: For `on_weights`.
        options: Of the syncs into this component.

    Raises:
        WeightSyncError: It failed.
    """
    match = MatchOptions(None, options.match_options.select, False)
    controller = Controller({"source": source, "target": target}, replace(options, check="never", match_options=match))
    deadline = time.monotonic() + options.timeout
    try:
        attempt = controller.begin(version, deadline, detached=False)
        controller.commit(attempt)
        controller.finalize(attempt)
    finally:
        controller.close(deadline)

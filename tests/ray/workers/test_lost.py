"""Ray's errors as ours: who is gone, and why, in a line; an answer that is lost: test_lost_replies.py."""

from __future__ import annotations

from typing import Any

import pytest
from ray import exceptions

from twinkle_ray.workers.lost import to_failure
from twinkle_remote.protocol import WorkerInfo

KINDS: Any = exceptions  # some of their constructors are not typed
INFO = WorkerInfo("actor", 1, 2, "host", 7)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KINDS.OutOfMemoryError("Task was killed due to the node running low on memory."), "low on memory"),
        (KINDS.NodeDiedError("the node was terminated"), "its node was lost"),
        (KINDS.ActorUnavailableError("RpcError: Unavailable", None), "may or may not have run"),
        (KINDS.WorkerCrashedError(), "died unexpectedly"),
    ],
)
def test_a_lost_worker_is_lost_for_whatever_reason(error: Exception, message: str) -> None:
    failure = to_failure(error, INFO, {"dp": 0, "tp": 1}, {}, "own", "Actor.update")
    assert failure.died and not failure.upstream
    assert failure.label == "actor[1/2 dp=0 tp=1]" and failure.node == "host pid 7"
    assert failure.method == "Actor.update"
    assert message in failure.message and "\n" not in failure.message

"""Ray's errors as ours: who is gone, and why, in a line."""

from __future__ import annotations

from typing import Any

import pytest
from ray import exceptions

from twinkle_ray.workers.lost import to_failure
from twinkle_remote import RemoteCallError, ReplyLostError, WorkerDiedError
from twinkle_remote.backends.support import raise_failures
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


def test_the_lost_answer_of_a_worker_that_lives_is_no_death() -> None:
    error = KINDS.ActorUnavailableError("RpcError: Unavailable", None)
    failure = to_failure(error, INFO, None, {}, "own", "Actor.update", lives=True)
    assert failure.unanswered and not failure.died
    with pytest.raises(ReplyLostError) as caught:
        raise_failures("Actor.update", "actor", [failure], "loop.py:7")
    assert not isinstance(caught.value, WorkerDiedError | RemoteCallError)
    first, line = str(caught.value).splitlines()
    assert first.startswith(
        "actor[1/2] lives, but its answer to Actor.update is lost (host pid 7): the connection broke"
    )
    assert first.endswith("the call may or may not have run") and line == "  called from loop.py:7"
    dead = to_failure(KINDS.WorkerCrashedError(), INFO, None, {}, "own", "Actor.update", lives=True)
    assert dead.died and not dead.unanswered

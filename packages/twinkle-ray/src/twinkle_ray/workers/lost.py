"""Errors of Ray as failures: which worker is lost, and why, in one line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ray import exceptions

from twinkle_remote.protocol import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_remote.protocol import WorkerInfo


_LOST = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.ObjectLostError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
)


def to_failure(
    error: BaseException,
    info: WorkerInfo,
    coordinate: Mapping[str, int] | None,
    others: Mapping[str, str],
    own: str,
    method: str,
    *,
    lives: bool = False,
) -> Failure:
    """Convert an error of Ray, raised in place of a worker's answer, to a failure.

    Args:
        error: What `ray.get` raised.
        info: The worker that was asked.
        coordinate: Its coordinate, where known.
        others: Labels of all workers by actor id, to name the culprit when it is another one.
        own: Actor id of the worker that was asked.
        method: Class.method that it was asked for.
        lives: Its process is alive, so that only its answer is lost.
    """
    culprit = _actor_id(error)
    upstream = bool(culprit) and culprit != own
    lives = lives and not upstream and isinstance(error, exceptions.ActorUnavailableError)
    label = others.get(culprit, "another worker") if upstream else info.label(coordinate)
    return Failure(
        label=label,
        node="" if upstream else f"{info.node} pid {info.pid}",
        type_name=type(error).__name__,
        message=reason(error) if not lives else _UNANSWERED,
        method=method,
        died=isinstance(error, _LOST) and not lives,
        unanswered=lives,
        upstream=upstream,
    )


def _actor_id(error: BaseException) -> str:
    found = getattr(error, "actor_id", None)
    return found if isinstance(found, str) else ""


_UNANSWERED = "the connection broke while the call was on its way; the call may or may not have run"
_KNOWN = (
    (
        r"connection error code 2",
        "its process ended without an error: killed (SIGKILL, SIGTERM, SIGSEGV), by os._exit, or out of memory",
    ),
    (r"ray\.kill", "it was killed on request (ray.kill)"),
    (r"killed due to the node running low on memory|OOM", "Ray killed it because its node ran low on memory"),
    (
        r"[Oo]wner's node has crashed",
        "the raylet (Ray's own process) of the driver's node ended, killed or out of memory, and workers with it",
    ),
    (r"node (which|that) the actor was (running|on)|NODE_DIED|node.{0,80}(died|dead|terminated)", "its node was lost"),
    (
        r"may or may not have (been )?executed",
        "its node or process cannot be reached; the call may or may not have run",
    ),
)


def reason(error: BaseException) -> str:
    """Why an actor is lost, in one line."""
    text = str(error)
    for pattern, reason in _KNOWN:
        if re.search(pattern, text, re.DOTALL):
            return reason
    return re.sub(r"\s+", " ", text).strip()[:600]

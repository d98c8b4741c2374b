"""Ray's errors as failures: which worker is gone, and why, in a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ray import exceptions

from twinkle_remote.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_remote.failure import WorkerInfo


def to_failure(
    error: Exception, info: WorkerInfo, coordinate: Mapping[str, int] | None, others: Mapping[str, str], own: str
) -> Failure:
    """What became of a worker whose answer is an error of Ray's.

    Args:
        error: What `ray.get` raised.
        info: The worker that was asked.
        coordinate: Its coordinate, where known.
        others: Labels of all workers by actor id, to name the culprit when it is another one.
        own: Actor id of the worker that was asked.
    """
    culprit = _actor_id(error)
    upstream = bool(culprit) and culprit != own
    label = others.get(culprit, "another worker") if upstream else info.label(coordinate)
    died = isinstance(error, exceptions.RayActorError | exceptions.WorkerCrashedError | exceptions.ObjectLostError)
    return Failure(
        label=label,
        node="" if upstream else f"{info.node} pid {info.pid}",
        type_name=type(error).__name__,
        message=_reason(error),
        died=died,
        upstream=upstream,
    )


def _actor_id(error: BaseException) -> str:
    found = getattr(error, "actor_id", None)
    return found if isinstance(found, str) else ""


_NOISE = re.compile(r"Worker exit detail: |Worker exit type: |\s+", re.MULTILINE)


def _reason(error: BaseException) -> str:
    text = str(error)
    detail = re.search(r"Worker exit type: (\S+).*?Worker exit detail: (.*)", text, re.DOTALL)
    if detail:
        text = f"{detail.group(1)}: {detail.group(2)}"
    return re.sub(r"\s+", " ", text).strip()[:600]

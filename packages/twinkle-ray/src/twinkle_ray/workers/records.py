"""The metrics of the calls that workers made: the driver asks all of them at once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    from twinkle_ray.workers.group import RayGroup
    from twinkle_remote import CallRecord
    from twinkle_remote.protocol import WorkerInfo

_log = logging.getLogger("twinkle.ray")
_SECONDS = 2.0  # in which workers that seem to be idle must answer
_BUSY_SECONDS = 0.1  # that others have: the thread of an event loop's tasks is free, that of a `def` method is not
_SHOWN = 8


class RecordsOfWorkers:
    """Asks workers for the records of their calls; one that runs a `def` method answers when the method is over."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int, int], ray.ObjectRef[Sequence[CallRecord]]] = {}

    def ask(
        self, groups: Sequence[RayGroup], since: float, busy: Collection[tuple[str, int]]
    ) -> dict[Hashable, Sequence[CallRecord]]:
        """The records of each worker that answers now, by its group, rank and process.

        What a worker that was asked earlier has answered since then is among them.

        Args:
            groups: All groups.
            since: Without calls that were submitted earlier, in seconds of the wall clock.
            busy: Group and rank of workers that are not waited for, because they may run a method.
        """
        members = [member for group in groups for rank, member in enumerate(group.members) if rank not in group.deaths]
        fresh: list[WorkerInfo] = []
        for member in members:
            key = _key(member.info)
            if key not in self._asked:
                self._asked[key] = member.actor.own_records.remote(since)
                fresh.append(member.info)
        idle = [self._asked[_key(info)] for info in fresh if (info.group, info.rank) not in busy]
        if idle:
            ray.wait(idle, num_returns=len(idle), timeout=_SECONDS)
        found = self._take()
        late = [info for info in fresh if _key(info) in self._asked]
        if late:
            labels = [info.label() for info in late]
            more = f" and {len(labels) - _SHOWN} others" if len(labels) > _SHOWN else ""
            what = f"stats: {', '.join(labels[:_SHOWN])}{more} cannot answer now, and may run a method"
            _log.warning("%s: a later stats() has the calls that they have made meanwhile", what)
        return found

    def _take(self) -> dict[Hashable, Sequence[CallRecord]]:
        """The answers that are there."""
        keys = {ref: key for key, ref in self._asked.items()}
        if not keys:
            return {}
        ready, _ = ray.wait(list(keys), num_returns=len(keys), timeout=_BUSY_SECONDS)
        found: dict[Hashable, Sequence[CallRecord]] = {}
        for ref in ready:
            key = keys[ref]
            del self._asked[key]
            try:
                found[key] = ray.get(ref)
            except ray.exceptions.RayError:  # it has ended
                continue
        return found


def _key(info: WorkerInfo) -> tuple[str, int, int]:
    return info.group, info.rank, info.pid

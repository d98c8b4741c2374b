"""Who may open whose memory: the driver and the workers of its node ask each other before they share segments.

A driver may belong to another user than the workers of a cluster that it joins, or see other processes. The workers of
one node belong to one user.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import ray

from twinkle_ray.objects.shared_memory import mappings, placed, segments
from twinkle_ray.objects.shared_memory.placed import MemoryOffer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_ray.workers.member import Member


class MemoryOffers:
    """The driver's offers."""

    def __init__(self) -> None:
        self._file = -1
        self._taken = segments.available()

    def to(self, member: Member) -> MemoryOffer:
        """The offer to a worker."""
        if not segments.available():
            return MemoryOffer(placing=False)
        if member.node != ray.get_runtime_context().get_node_id():
            return MemoryOffer(placing=True)
        if self._file < 0:
            self._file = os.memfd_create("twinkle-offer", os.MFD_CLOEXEC)
        return MemoryOffer(placed.may_open(member.info.pid, member.stack), (os.getpid(), self._file))

    def take(self, answers: Iterable[object]) -> None:
        """Take whether workers may open this process's memory: it shares none where one may not."""
        self._taken = self._taken and all(answer is not False for answer in answers)
        placed.allow(placing=self._taken)

    def close(self) -> None:
        """Share nothing any more; readers keep what they have mapped."""
        placed.allow(placing=False)
        segments.pool.close()
        mappings.unmap_kept()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

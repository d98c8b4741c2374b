"""Gathering: jobs of calls that wait at once are written together, so that 64 episodes are not 64 passes of one row.

Invariant: jobs are written on the event loop, between two awaits, where no new weights come meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_engines.samplers.params import SamplingParams
    from twinkle_engines.samplers.sampler import Answer
    from twinkle_engines.samplers.seeds import Job

_SECONDS = 0.003  # in which calls that were made together arrive


class Gathering:
    """The calls that wait for a model which writes for all of them at once.

    Args:
        write: Writes an answer to each job; blocks until all are written.
    """

    def __init__(self, write: Callable[[Sequence[Job], SamplingParams], list[Answer]]) -> None:
        self._write = write
        self._waiting: dict[SamplingParams, list[tuple[list[Job], asyncio.Future[list[Answer]]]]] = {}

    async def answers(self, jobs: list[Job], params: SamplingParams) -> list[Answer]:
        """The answers to jobs: waits for those of earlier calls, then for all that were asked with equal parameters."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Answer]] = loop.create_future()
        if not self._waiting:
            loop.call_later(_SECONDS, self._answer_all)
        self._waiting.setdefault(params, []).append((jobs, future))
        return await future

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for params, calls in waiting.items():
            open_calls = [(jobs, future) for jobs, future in calls if not future.done()]
            try:
                found = iter(self._write([job for jobs, _ in open_calls for job in jobs], params))
                for jobs, future in open_calls:
                    future.set_result([next(found) for _ in jobs])
            except Exception as error:
                if len(open_calls) == 1:
                    open_calls[0][1].set_exception(error)  # its caller raises it
                    continue
                for one in open_calls:  # the error is that of one call: the others have their answers
                    self._waiting = {params: [one]}
                    self._answer_all()

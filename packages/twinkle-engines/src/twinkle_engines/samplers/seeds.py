"""Seeds of sequences: given ones make draws independent of the other rows, drawn ones are each row's own."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import torch

from twinkle_remote import current_worker
from twinkle_remote.backends.support import session_seed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class Job(NamedTuple):
    """An answer to write: the prompt's ids, the answer's number among those to the prompt, and the row's seed."""

    ids: list[int]
    number: int
    seed: int


class RowSeeds:
    """The seeds of the rows of calls, drawn where a call has none.

    They are a function of the session's seed, the component, its data rank, the version of its weights and the number
    of the call under that version: two components draw differently, and so does each call. A run that goes on from a
    checkpoint has later versions, and does not repeat what was drawn. Ranks of one data rank draw the same.
    """

    def __init__(self) -> None:
        worker = current_worker()
        seed, session = session_seed()
        rank = _rank()
        place = rank if worker.mesh is None else worker.mesh.data_rank()
        if seed is None:
            seed = int(torch.randint(2**62, ()))  # without a session, torch's generator is what the user seeds
        number = next(_components[session, worker.group, rank])
        self._name = f"{seed}/{worker.group}/{number}/{place}"
        self._lock = Lock()
        self._version = 0
        self._calls = count()

    def on_weights(self, version: int) -> None:
        """Begin the calls of a version that is later than those before."""
        with self._lock:
            if version > self._version:
                self._version, self._calls = version, count()

    def state(self) -> dict[str, int]:
        """The version, and the calls under it so far."""
        with self._lock:
            call = next(self._calls)
            self._calls = count(call)
            return {"version": self._version, "calls": call}

    def resume(self, states: Iterable[Mapping[str, int]]) -> None:
        """Go on behind the calls of all ranks of a run before, on any layout."""
        with self._lock:
            self._version, call = max((one["version"], one["calls"]) for one in states)
            self._calls = count(call)

    def jobs(self, prompts: Sequence[list[int]], n: int, seed: int | None) -> list[Job]:
        """The jobs of a call, `n` for each prompt, in the order of the prompts."""
        seeds = [seed] * len(prompts) if seed is not None else self._drawn(len(prompts))
        return [Job(ids, number, own) for ids, own in zip(prompts, seeds, strict=True) for number in range(n)]

    def _drawn(self, rows: int) -> list[int]:
        with self._lock:
            call = f"{self._name}/{self._version}/{next(self._calls)}"
        return [_number(f"{call}/{row}") for row in range(rows)]


_components: defaultdict[tuple[int, str | None, int], Iterator[int]] = defaultdict(count)
"""Numbers for the components of a rank in this process, by session."""


def _rank() -> int:
    """This process's rank in its group, or under a launcher, where every process is the driver."""
    rank = current_worker().rank
    return int(os.environ.get("RANK", "0")) if rank is None else rank


def draws_of(job: Job, count: int) -> torch.Tensor:
    """Numbers in [0, 1) of one sequence: a function of the seed, the prompt and the answer's number alone."""
    generator = torch.Generator().manual_seed(sequence_seed(*job))
    return torch.rand(count, dtype=torch.float64, generator=generator)


def sequence_seed(ids: Sequence[int], number: int, seed: int) -> int:
    """A function of a row's seed, the prompt's ids and the answer's number: a signed integer of 64 bits."""
    return _number(f"{seed}/{number}/{','.join(map(str, ids))}")


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)

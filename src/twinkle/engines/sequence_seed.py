"""Seeds of sequences: given ones make draws independent of the rows beside them, drawn ones are each row's own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import torch

from twinkle import current_worker

if TYPE_CHECKING:
    from collections.abc import Sequence


class Job(NamedTuple):
    """An answer to write: the prompt's ids, the answer's number among those to the prompt, and the row's seed."""

    ids: list[int]
    number: int
    seed: int


class RowSeeds:
    """The seeds of the rows of calls, drawn where a call has none.

    Each data rank draws others, though torch's generator is seeded alike on all ranks: a prompt that is asked for
    several times, in a call or on several data ranks, gets an answer of its own each time. Ranks of one data rank draw
    the same.
    """

    def __init__(self) -> None:
        worker = current_worker()
        place = worker.rank or 0 if worker.mesh is None else worker.mesh.data_rank()
        drawn = int(torch.randint(2**62, ()))  # threads share torch's own, and vLLM seeds it anew
        self._generator = torch.Generator().manual_seed(sequence_seed([], place, drawn))

    def jobs(self, prompts: Sequence[list[int]], n: int, seed: int | None) -> list[Job]:
        """The jobs of a call, `n` for each prompt, in the order of the prompts.

        Args:
            prompts: Their ids.
            n: Answers to each.
            seed: Of the call; None draws one for each row.
        """
        drawn = torch.randint(2**62, (len(prompts),), generator=self._generator).tolist() if seed is None else None
        seeds = [seed] * len(prompts) if drawn is None else drawn
        return [Job(ids, number, own) for ids, own in zip(prompts, seeds, strict=True) for number in range(n)]


def sequence_seed(ids: Sequence[int], number: int, seed: int) -> int:
    """A function of a row's seed, the prompt's ids and the answer's number: a signed integer of 64 bits."""
    name = f"{seed}/{number}/{','.join(map(str, ids))}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)

"""The seed of one sequence, which makes its draws independent of the rows beside it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def sequence_seed(ids: Sequence[int], number: int, seed: int) -> int:
    """A function of the seed of a call, the prompt's ids and the answer's number: a signed integer of 64 bits."""
    name = f"{seed}/{number}/{','.join(map(str, ids))}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little", signed=True)

"""Errors of operations that name the ranks; in debug mode, operations are compared over the ranks before they run."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup, distributed_c10d

from twinkle_ray.collective.errors import CollectiveError, CollectiveMismatchError, CollectiveTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

ROLL_CALL_SECONDS = 3.0
NEVER_TAG = (1 << 30) + 1
_POLL_SECONDS = 0.002
_COUNTERS: WeakKeyDictionary[ProcessGroup, count[int]] = WeakKeyDictionary()  # operations of each group


@dataclass(frozen=True, slots=True)
class Signature:
    """The operation that one rank is about to run; it must be equal on all ranks of a collective.

    Attributes:
        operation: Its name, and all else that must be equal.
        what: Shape and dtype of the tensor.
    """

    operation: str
    what: str = ""

    @staticmethod
    def of(operation: str, tensor: Tensor) -> Signature:
        """The signature of an operation on a tensor."""
        return Signature(operation, f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")

    def __str__(self) -> str:
        return f"{self.operation} {self.what}".strip()


def close_connections(group: ProcessGroup, rank: int, size: int) -> None:
    """Close the connections of a Gloo group, so that peers that wait for this rank fail at once.

    Only a wait that times out closes them. It works from any thread, and ends every wait of this process.

    Args:
        group: A Gloo group that is not used any more.
        rank: Rank of this process in it.
        size: Number of its ranks.
    """
    never = torch.zeros(1, dtype=torch.uint8)
    for step in range(1, size):  # the wait for a dead peer fails before it times out, so the next peer is tried
        with suppress(RuntimeError):
            group.recv([never], (rank + step) % size, NEVER_TAG).wait(timedelta(milliseconds=1))


class Diagnostics:
    """Runs the operations of one group; its errors name the ranks, unlike those of torch.

    Args:
        group: The group.
        ranks: Its ranks in the default group.
        rank: Rank of this process in the group.
        timeout: Time limit of an operation; None for torch's default.
        debug: Compare the signatures of all ranks before each operation.
    """

    def __init__(
        self, group: ProcessGroup, ranks: Sequence[int], rank: int, timeout: timedelta | None, *, debug: bool
    ) -> None:
        self._group, self._ranks, self._rank, self._debug = group, ranks, rank, debug
        self._seconds = (timeout or distributed_c10d.default_pg_timeout).total_seconds()
        self._counter = _COUNTERS.setdefault(group, count(1))
        self._count = 0
        name = group.group_name
        self._store: Store = PrefixStore(f"twinkle/collective/{name}", distributed_c10d._get_default_store())

    @contextmanager
    def __call__(self, signature: Signature) -> Iterator[None]:
        """Run one operation in a block.

        Raises:
            CollectiveMismatchError: In debug mode, the ranks are about to run different operations.
            CollectiveTimeoutError: Ranks are missing at the deadline.
            CollectiveError: The operation failed; the message names the ranks that do not answer.
        """
        self._count = next(self._counter)
        if self._debug:
            self._compare(signature)
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            if isinstance(error, CollectiveError):
                raise
            raise self._explained(signature, error) from error

    def _compare(self, signature: Signature) -> None:
        number = self._count
        self._store.set(f"{number}/{self._rank}", str(signature))
        keys = [f"{number}/{rank}" for rank in range(len(self._ranks))]
        missing = self._wait(keys, self._seconds)
        if missing:
            raise CollectiveTimeoutError(
                f"{signature} (operation {number} of the group {list(self._ranks)}): rank(s) {missing} did not enter "
                f"it within {self._seconds:g} s"
            )
        said = [bytes(self._store.get(key)).decode() for key in keys]
        if len(set(said)) > 1:
            kinds = {text: [rank for rank, other in enumerate(said) if other == text] for text in said}
            listing = "; ".join(f"rank(s) {ranks}: {text}" for text, ranks in kinds.items())
            raise CollectiveMismatchError(
                f"operation {number} of the group {list(self._ranks)} is not the same on every rank: {listing}"
            )
        if number > 1:  # every rank has finished the comparison before, so its keys are not read any more
            self._store.delete_key(f"{number - 1}/{self._rank}")

    def _explained(self, signature: Signature, error: Exception) -> CollectiveError:
        """The error, with the ranks that do not set their key in the store in time."""
        first = str(error).partition("\n")[0]
        head = f"{signature} failed on rank {self._rank} of the group {list(self._ranks)}: {first}"
        try:
            if dist.get_backend(self._group) == "gloo":
                close_connections(self._group, self._rank, len(self._ranks))
            self._store.set(f"down/{self._count}/{self._rank}", "1")
            absent = self._wait([f"down/{self._count}/{rank}" for rank in range(len(self._ranks))], ROLL_CALL_SECONDS)
        except (RuntimeError, dist.DistError):
            return CollectiveError(f"{head}; the store is gone, and with it the process that held it")
        if absent:
            return CollectiveTimeoutError(f"{head}; no answer from rank(s) {absent}: dead, stopped or elsewhere")
        return CollectiveError(f"{head}; every rank answers, so that they probably entered different operations")

    def _wait(self, keys: Sequence[str], seconds: float) -> list[int]:
        """Wait for one key of each rank; returns the ranks whose key was not set in time."""
        deadline = time.monotonic() + seconds
        left = dict(enumerate(keys))
        while left:
            left = {rank: key for rank, key in left.items() if not self._store.check([key])}
            if left and time.monotonic() > deadline:
                break
            if left:
                time.sleep(_POLL_SECONDS)
        return sorted(left)

"""Errors of operations that name ranks and what they entered; in debug mode ranks are compared before they enter.

torch's TORCH_DISTRIBUTED_DEBUG=DETAIL compares beforehand too, three times as fast, and is not enough: it names two of
the ranks, takes broadcasts from different sources for equal, shows what travels as bytes without its dtype, and holds
for the whole process from before its first group on.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, default_pg_timeout

from twinkle_ray.collective.errors import CollectiveError, CollectiveMismatchError, CollectiveTimeoutError
from twinkle_ray.collective.operation_log import LOGS, OperationLog, first_difference
from twinkle_ray.torch_internals import default_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

ROLL_CALL_SECONDS = 3.0
NEVER_TAG = (1 << 30) + 1
_POLL_SECONDS = 0.002
_ROLL_CALL_POLL_SECONDS = 0.05


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
        with suppress(RuntimeError):  # it times out, or the peer is dead
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
        self._seconds = (timeout or default_pg_timeout).total_seconds()
        self._is_gloo = "gloo" in dist.get_backend(group)  # alone, or with NCCL
        name = group.group_name
        self._store: Store = PrefixStore(f"twinkle/collective/{name}", default_store())
        self._log = LOGS.setdefault(group, OperationLog(self._store, rank, len(ranks)))

    @contextmanager
    def __call__(self, signature: Signature) -> Iterator[None]:
        """Run one operation in a block.

        Raises:
            CollectiveMismatchError: The ranks entered different operations; in debug mode, before they enter.
            CollectiveTimeoutError: Ranks are missing at the deadline.
            CollectiveError: The operation failed otherwise.
        """
        number = self._log.enter(str(signature))
        if self._is_gloo:
            self._log.publish()
        if self._debug:
            self._compare(signature, number)
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            if isinstance(error, CollectiveError):
                raise
            raise self._explained(signature, number, error) from error

    def _compare(self, signature: Signature, number: int) -> None:
        self._store.set(f"{number}/{self._rank}", str(signature))
        keys = [f"{number}/{rank}" for rank in range(len(self._ranks))]
        missing = self._wait(keys, self._seconds)
        if missing:
            raise CollectiveTimeoutError(
                f"{signature} (operation {number} of the group {list(self._ranks)}): rank(s) {missing} did not enter "
                f"it within {self._seconds:g} s"
            )
        said = {rank: {number: bytes(self._store.get(key)).decode()} for rank, key in enumerate(keys)}
        difference = first_difference(said)
        if difference is not None:
            raise CollectiveMismatchError(self._mismatch(*difference))
        if number > 1:  # every rank is past the comparison before, so nobody reads those keys any more
            self._store.delete_key(f"{number - 1}/{self._rank}")

    def _mismatch(self, number: int, kinds: Mapping[str, Sequence[int]]) -> str:
        listing = "; ".join(f"rank(s) {ranks}: {text}" for text, ranks in kinds.items())
        return f"operation {number} of the group {list(self._ranks)} is not the same on every rank: {listing}"

    def _explained(self, signature: Signature, number: int, error: Exception) -> CollectiveError:
        """The error, with how the ranks differ, or which of them do not answer a roll call."""
        first = str(error).partition("\n")[0]
        where = f"{signature} failed on rank {self._rank} of the group {list(self._ranks)}"
        head = f"{where}: {first}"
        try:
            if self._is_gloo:
                close_connections(self._group, self._rank, len(self._ranks))
            self._log.give_up()
            return self._judged(head, number)
        except (RuntimeError, dist.DistError):
            why = "killed, or ended by Gloo because it received more than it expects"
            return CollectiveError(f"{where}: the process of the store is gone: {why} ({first})")

    def _judged(self, head: str, number: int) -> CollectiveError:
        """Wait for the others, `ROLL_CALL_SECONDS` at most; a plain difference is reported at once."""
        deadline = time.monotonic() + ROLL_CALL_SECONDS
        everyone = set(range(len(self._ranks)))
        while True:
            entered, answering = self._log.entered(), self._log.given_up()
            difference = first_difference(entered)
            behind = {rank for rank in everyone if max(entered[rank], default=0) < number}
            unknown = behind - answering if difference else everyone - answering
            if not unknown or time.monotonic() > deadline:
                break
            time.sleep(_ROLL_CALL_POLL_SECONDS)
        if difference:
            late = f"; rank(s) {sorted(unknown)} did not enter it" if unknown else ""
            return CollectiveMismatchError(f"{self._mismatch(*difference)}{late} ({head})")
        if not unknown:
            return CollectiveError(f"{head}; every rank answers, and all entered the same operation")
        latest = "".join(
            f"; rank {rank} last entered operation {max(entered[rank])}, {entered[rank][max(entered[rank])]}"
            for rank in sorted(behind & unknown)
            if entered[rank]
        )
        return CollectiveTimeoutError(
            f"{head}; no answer from rank(s) {sorted(unknown)}: dead, stopped or elsewhere{latest}"
        )

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
